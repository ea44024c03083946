"""The worst and the best stretches of responses, each token coloured by the step at which it was drafted.

Texts come from a target's vocabulary and from users' prompts: everything is escaped, and a page for sharing can
hide them. Steps differ in lightness, which every reader sees, and carry their number; the page's own background
is used in light and dark mode alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from eagle3lib.hidden_text import BLOCK
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Round, turn_ends, walk
from eagle3lib.token_text import visible

#: Fewest and most tokens of a stretch.
SHORTEST, LONGEST = 16, 60


@dataclass(frozen=True)
class Stretch:
    """Consecutive rounds of one turn.

    Attributes:
        tokens: ids, in order.
        steps: of each token, 0 where the target itself gave it, k where it was the k-th draft of its round.
        length: tokens a round.
    """

    sample: str
    turn: int
    tokens: tuple[int, ...]
    steps: tuple[int, ...]
    length: float


@dataclass(frozen=True)
class RoundTokens:
    """A round of the walk and the tokens that it commits, `steps` as in `Stretch`."""

    round: Round
    tokens: tuple[int, ...]
    steps: tuple[int, ...]


def round_tokens(rollout: Rollout, steps: int) -> list[RoundTokens]:
    """The walk's rounds in order, each with its tokens.

    Raises:
        ValueError: if the rollout has fewer steps.
    """
    row_of = {t: row for row, t in enumerate(zip(rollout.starts.tolist(), rollout.turns.tolist(), strict=True))}
    first, ends = rollout.recorded[:, 0].tolist(), turn_ends(rollout.turns.tolist())
    found = []
    for item in walk(rollout, steps):
        row = row_of[item.start, item.turn]
        own = first[row : min(row + item.committed, ends[row])]  # step 0 of each start drafts one token
        found.append(
            RoundTokens(item, tuple(own), tuple(k if k <= item.accepted else 0 for k in range(1, len(own) + 1)))
        )
    return found


def stretches(rollout: Rollout, steps: int) -> list[Stretch]:
    """A response cut into stretches of whole rounds, `LONGEST` tokens or a little less each.

    Raises:
        ValueError: if the rollout has fewer steps.
    """
    parts: list[list[RoundTokens]] = []
    for item in round_tokens(rollout, steps):
        part = parts[-1] if parts else []
        tokens = sum(r.round.committed for r in part)
        if not part or part[-1].round.turn != item.round.turn or tokens + item.round.committed > LONGEST:
            parts.append(part := [])
        part.append(item)
    found = []
    for part in parts:
        tokens = tuple(token for item in part for token in item.tokens)
        kinds = tuple(kind for item in part for kind in item.steps)
        found.append(Stretch(rollout.sample, part[0].round.turn, tokens, kinds, len(tokens) / len(part)))
    return found


def examples(rollouts: Sequence[Rollout], steps: int, count: int = 20) -> tuple[list[Stretch], list[Stretch]]:
    """The worst and the best stretches by tokens a round, none shorter than `SHORTEST` tokens; none in both."""
    found = [s for rollout in rollouts for s in stretches(rollout, steps) if len(s.tokens) >= SHORTEST]
    found.sort(key=lambda s: s.length)
    half = min(count, (len(found) + 1) // 2)
    return found[:half], found[half:][::-1][:count]


def examples_html(
    found: Sequence[Stretch], text: Callable[[int], str], caption: str, steps: int, hide_text: bool = False
) -> str:
    """Stretches as a list, their tokens in order, shaded by step; everything escaped.

    Args:
        text: a token's text by id, as `Target.text`.
        steps: K, for the legend.
        hide_text: show blocks in place of texts and numbers in place of samples' names.
    """
    kinds = {0: "target's own", **{k: f"draft {k}" for k in range(1, steps + 1)}}
    legend = "".join(token_html(k, kind, steps) for k, kind in kinds.items())
    items = []
    for i, s in enumerate(found, start=1):
        name = f"stretch {i}" if hide_text else f"{s.sample}, turn {s.turn + 1}"
        shown = [BLOCK if hide_text else text(token) for token in s.tokens]
        body = "".join(token_html(k, piece, steps) for k, piece in zip(s.steps, shown, strict=True))
        items.append(f"<li><p>{escape(name)}: {s.length:.2f} tokens a round</p><p>{body}</p></li>")
    return (
        f'<section class="examples" aria-label="{escape(caption)}">{STYLE}<h3>{escape(caption)}</h3>'
        f"<p>{legend}</p><ol>{''.join(items)}</ol></section>"
    )


def token_html(step: int, text: str, steps: int) -> str:
    """One token, shaded by the step at which it was drafted of K = `steps`; line breaks are made visible."""
    shown = escape(visible(text))
    mark = f"<sub>{step}</sub>" if step else ""
    shade = 0 if step == 0 else round(4 * step / steps + 0.49)
    return f'<span class="s{min(shade, 4)}" title="{_title(step)}">{shown}{mark}</span>'


def _title(step: int) -> str:
    return f"draft {step}, accepted" if step else "the target's own token"


#: One blue, from a breath to full, over the page's own background: light or dark, text stays legible on all four.
STYLE = """<style>
.examples span{border-radius:3px;white-space:pre-wrap;padding:0 1px}
.examples .s0{outline:1px dotted currentColor}
.examples .s1{background:#0072b226}.examples .s2{background:#0072b24d}.examples .s3{background:#0072b280}
.examples .s4{background:#0072b2;color:#fff}
.examples sub{font-size:.65em}
</style>"""
