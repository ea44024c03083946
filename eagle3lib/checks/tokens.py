"""Stage `dump`: the recorded tokens, their mask and their answers."""

from __future__ import annotations

from statistics import median

from eagle3lib.findings import Finding, Severity, quantity
from eagle3lib.responses import Responses
from eagle3lib.token_prefix import PrefixDifference

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK

#: From this share of turns on, loops or answers of one token say more of the data than of the draft.
MANY_DEGENERATE = 0.5


def check_tokens(dump: str, found: Responses) -> list[Finding]:
    """Ids within the vocabulary, tokens supervised, the mask beginning where the answer does, answers that are text."""
    findings = [*_foreign(dump, found), *_supervision(dump, found)]
    if found.turns:
        findings += [_edges(dump, found), _degenerate(dump, found)]
    return findings


def _foreign(dump: str, found: Responses) -> list[Finding]:
    count, names = found.foreign
    if not count:
        return []
    return [
        Finding(
            "dump.ids_outside_vocabulary",
            FAULT,
            f"Ids outside the target's vocabulary in {count} of {quantity(found.samples, 'sample')} of {dump}:"
            f" {names[0]}",
            "The tokens are of another tokenizer, or the target of another model.",
            "Point the case at the target that the dump was made with.",
            {"dump": dump, "samples": list(names), "count": count},
        )
    ]


def _supervision(dump: str, found: Responses) -> list[Finding]:
    count, names = found.without_supervision
    evidence = {
        "dump": dump,
        "samples": found.samples,
        "tokens": found.tokens,
        "supervised": found.supervised,
        "turns": found.turns,
    }
    if count:
        evidence |= {"without": count, "names": list(names)}
        return [
            Finding(
                "dump.mask_empty",
                FAULT if count == found.samples else RISK,
                f"No token is supervised in {count} of {quantity(found.samples, 'sample')} of {dump}",
                "A trainer learns nothing from them: the template's assistant marker was not found, or the answer was"
                " cut off.",
                "See that the mask is made with the template that made the tokens.",
                evidence,
            )
        ]
    if not found.turns:
        return []
    lengths = sorted(found.turn_lengths)
    evidence |= {"shortest_turn": lengths[0], "median_turn": median(lengths), "longest_turn": lengths[-1]}
    return [
        Finding(
            "dump.supervised",
            OK,
            f"{dump} supervises {found.supervised:,} of {found.tokens:,} tokens, {quantity(found.turns, 'turn')} in"
            f" {quantity(found.samples, 'sample')}",
            f"A turn has {lengths[0]} to {lengths[-1]} tokens, {median(lengths):g} in the middle.",
            evidence=evidence,
        )
    ]


def _edges(dump: str, found: Responses) -> Finding:
    read = sum(found.edges.values())
    evidence = {"dump": dump, "turns": found.turns, "unread": found.unread_edges}
    evidence |= {f"offset_{offset:+d}": turns for offset, turns in found.edges.items()}
    if not read:
        return Finding(
            "dump.mask_edge_unknown",
            NOTE,
            f"Cannot tell whether the loss mask of {dump} begins where the answers do",
            "No known end of a generation prompt stands near the mask's beginnings, or the tokens' texts are not at"
            " hand; the target's argmax does not tell, since the template's own tokens are foreseen as well.",
            "Put tokenizer.json beside the target's weights; for an unknown template look at the first turn's tokens.",
            evidence,
        )
    for offset, word in ((-1, "early"), (1, "late")):
        if found.edges.get(offset, 0) > read / 2:
            return Finding(
                "dump.mask_shifted",
                FAULT,
                f"The loss mask of {dump} begins one token {word} in {found.edges[offset]} of {quantity(read, 'turn')}",
                "The generation prompt's last token is supervised, and the answer's last is not."
                if offset < 0
                else "The first token of the answer is never trained; the mask was shifted for labels.",
                "Store the mask unshifted: it marks the generated tokens themselves.",
                evidence,
            )
    right = found.edges.get(0, 0)
    if right == read:
        return Finding(
            "dump.mask_edge",
            OK,
            f"The loss mask of {dump} begins right after the generation prompt in all of {quantity(read, 'turn')}",
            "The first generated token is the first supervised one.",
            evidence=evidence,
        )
    return Finding(
        "dump.mask_edge_mixed",
        NOTE,
        f"The loss mask of {dump} begins right after the generation prompt in {right} of {quantity(read, 'turn')}",
        "Elsewhere the template goes on after its role marker (a thinking tag, a channel), or the mask is off.",
        "Look at the first tokens of one such turn.",
        evidence,
    )


def _degenerate(dump: str, found: Responses) -> Finding:
    looping, short = found.looping / found.turns, found.one_token / found.turns
    many = max(looping, short) > MANY_DEGENERATE
    return Finding(
        "dump.degenerate_text",
        RISK if many else NOTE if looping or short else OK,
        f"Of {quantity(found.turns, 'answer')} of {dump} {looping:.1%} end in a loop, {short:.1%} are of one token",
        "A loop is foreseen by any draft, so its acceptance is better than on other text."
        if looping
        else "An answer of one token ends as it begins, and no draft is verified in it."
        if short
        else "The answers are text.",
        "Leave these prompts out, or state the rate beside every acceptance." if looping or short else "",
        {"dump": dump, "turns": found.turns, "looping": found.looping, "one_token": found.one_token},
    )


def check_prefix(difference: PrefixDifference) -> Finding:
    """The dump's tokens begin as a server's request does."""
    evidence = {
        "first_difference": difference.at,
        "tokens_dump": difference.lengths[0],
        "tokens_server": difference.lengths[1],
        "dump": list(difference.ours),
        "server": list(difference.theirs),
    }
    if difference.at is None:
        return Finding(
            "dump.prefix",
            OK,
            f"Dump and server agree on all of their {min(difference.lengths)} common tokens",
            difference.suggests,
            evidence=evidence,
        )
    ours, theirs = ("".join(texts) for texts in (difference.ours, difference.theirs))
    return Finding(
        "dump.prefix_differs",
        FAULT,
        f"Dump and server part at token {difference.at}: {ours!r} against {theirs!r}",
        difference.suggests,
        "Make the dump with the server's own template and settings, or send the server the dump's ids.",
        evidence,
    )
