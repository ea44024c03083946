"""One round of a replay, as a server would run it: what stood before, what was drafted, what was accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from eagle3lib.examples import STYLE, RoundTokens, round_tokens, token_html
from eagle3lib.findings import quantity
from eagle3lib.hidden_text import BLOCK
from eagle3lib.rollout import Rollout
from eagle3lib.token_text import visible

#: Tokens shown of what stood before a round.
BEFORE = 60


def round_html(rollout: Rollout, steps: int, number: int, text: Callable[[int], str], hide_text: bool = False) -> str:
    """Round `number` of the walk, 0 the first: the turn up to it, and a row a draft up to the first miss.

    Behind a miss the replay has no drafts to show: it goes on from the recorded token, a server's chain from its own.

    Args:
        text: a token's text by id, as `Target.text`.
        hide_text: show blocks in place of texts, and no name.

    Raises:
        ValueError: if the rollout has fewer steps.
    """
    rounds = round_tokens(rollout, steps)
    if not rounds:
        return "<p>No round starts in this response.</p>"
    shown = rounds[number]
    told = (lambda token: BLOCK) if hide_text else text
    before = [item for item in rounds[:number] if item.round.turn == shown.round.turn]
    stood = [pair for item in before for pair in zip(item.tokens, item.steps, strict=True)][-BEFORE:]
    earlier = "".join(token_html(step, told(token), steps) for token, step in stood)
    name = "" if hide_text else f"{rollout.sample}, "
    caption = (
        f"{name}turn {shown.round.turn + 1}, round {number + 1} of {len(rounds)}: {shown.round.accepted} of {steps}"
        f" drafts accepted, {quantity(len(shown.tokens), 'token')}" + (", the turn's last" if shown.round.last else "")
    )
    return (
        f'<section class="examples" aria-label="{escape(caption)}">{STYLE}<h4>{escape(caption)}</h4>'
        f"<p>{earlier or 'The turn begins.'} <strong>{_kept(shown, told, steps)}</strong></p>"
        f"{_STYLE}<table><thead><tr><th scope=col>draft</th><th scope=col>drafted</th><th scope=col>target's token</th>"
        "<th scope=col>verdict</th><th scope=col>draft's chance of the target's token</th></tr></thead>"
        f"<tbody>{_rows(rollout, shown, steps, told)}</tbody></table></section>"
    )


def _kept(shown: RoundTokens, text: Callable[[int], str], steps: int) -> str:
    return "".join(token_html(k, text(token), steps) for token, k in zip(shown.tokens, shown.steps, strict=True))


def _rows(rollout: Rollout, shown: RoundTokens, steps: int, text: Callable[[int], str]) -> str:
    """A row a draft, the last one the first that was rejected; then the target's own token."""
    item = shown.round
    row = int(((rollout.starts == item.start) & (rollout.turns == item.turn)).nonzero()[0])
    rows = []
    for k in range(min(item.accepted + 1, steps)):
        if not rollout.valid[row, k]:
            rows.append((str(k + 1), "", "", "the turn ended", ""))
            break
        drafted, recorded = (text(int(ids[row, k])) for ids in (rollout.predicted, rollout.recorded))
        verdict = "✓ accepted" if k < item.accepted else "✗ rejected"
        chance = math.exp(float(rollout.logprob[row, k]))
        rows.append(
            (
                str(k + 1),
                visible(drafted),
                visible(recorded),
                verdict,
                f"{chance:.1%}" if chance else "not in its vocabulary",
            )
        )
    if shown.steps and shown.steps[-1] == 0:
        rows.append(("–", "", visible(text(shown.tokens[-1])), "the target's own", ""))
    return "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in rows)


_STYLE = """<style>
.examples table{border-collapse:collapse;width:auto;margin:.5em 0;line-height:1.4}
.examples th,.examples td{text-align:left;white-space:pre-wrap;padding:.15em 1.2em .15em 0}
</style>"""
