"""Norms token by token: how loud each token's state is beside the median of its boundary, under the tokens' texts.

Texts come from a target's vocabulary and from users' prompts: everything is escaped, and a page for sharing can
hide them. Shades grow lighter with the norm, in grey as in colour; what they stand for is the same in every dump.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

import matplotlib
import torch
from jaxtyping import Float
from matplotlib.colors import to_hex
from torch import Tensor

from eagle3lib.boundaries import Boundary, boundary_name
from eagle3lib.markup import format_value
from eagle3lib.sample import Sample
from eagle3lib.token_text import visible

#: Tokens beside each other.
SHOWN = 40
#: Shades in equal ratios, from a norm of 1 / `RANGE` of the median to one of `RANGE` times it.
SHADES, RANGE = 12, 3.0


def token_norms(sample: Sample, first: int, count: int = SHOWN) -> Float[Tensor, "B W"]:
    """‖h‖ of every boundary, in stored order, and of up to `count` tokens from `first` on; no other row is read."""
    rows = min(len(state) for state in sample.states.values())
    states = (state[first : min(first + count, rows)] for state in sample.states.values())
    return torch.stack([state.double().norm(dim=-1).float() for state in states])


def norm_map_html(
    sample: Sample,
    first: int,
    medians: Mapping[Boundary, float],
    text: Callable[[int], str],
    hide_text: bool = False,
) -> str:
    """A map of `SHOWN` tokens from `first` on, or the last ones: a row a boundary, a column a token.

    Args:
        medians: norm by boundary that its row is held against, as of the whole dump.
        text: a token's text by id, as `Target.text`.
        hide_text: show positions in place of texts, and no name.
    """
    rows = min(len(state) for state in sample.states.values())
    first = max(min(first, rows - SHOWN), 0)
    norms = token_norms(sample, first)
    ids = sample.token_ids[first : first + norms.shape[1]].tolist()
    own = sample.loss_mask[first : first + norms.shape[1]].tolist()
    heads = [str(first + i) for i in range(norms.shape[1])]
    names = [f"token {head}" for head in heads]
    if rows < len(sample.token_ids) - 1:  # nobody knows which token a row is of
        names, own = [f"row {head}" for head in heads], [False] * len(heads)
    elif not hide_text:
        heads = [visible(text(token)) for token in ids]
        names = [f"{name} “{piece.strip()}”" for name, piece in zip(names, heads, strict=True)]
    lines = [(b, medians[b], row) for b, row in zip(sample.states, norms.tolist(), strict=True)]
    caption = f"{'' if hide_text else sample.name + ', '}{names[0]} to {names[-1]}. " if names else "No state is held. "
    caption += _loudest(lines, names)
    return (
        f'<div class="norm-map" tabindex="0" role="region" aria-label="{escape(caption)}">{_STYLE}'
        f"<table><caption>{escape(caption)}</caption><thead><tr><td></td>{''.join(map(_head, heads, names, own))}</tr>"
        f"</thead><tbody>{''.join(_row(*line, names) for line in lines)}</tbody></table>{_LEGEND}</div>"
    )


def _loudest(lines: Sequence[tuple[Boundary, float, list[float]]], names: Sequence[str]) -> str:
    """In words: the state that is the furthest above its boundary's median."""
    told = [
        (norm / median, norm, boundary, name)
        for boundary, median, row in lines
        for norm, name in zip(row, names, strict=True)
        if median > 0 and math.isfinite(norm)
    ]
    if not told:
        return "Nothing can be held against a median."
    ratio, norm, boundary, name = max(told, key=lambda one: one[0])
    where = f"{name} at {boundary_name(boundary)}"
    return f"Furthest above its boundary's median: {where}, {format_value(norm)}, {ratio:.1f} times."


def _head(text: str, name: str, own: bool) -> str:
    return f'<th scope="col" title="{escape(name)}"><span{" class=own" if own else ""}>{escape(text)}</span></th>'


def _row(boundary: Boundary, median: float, norms: Sequence[float], names: Sequence[str]) -> str:
    cells = "".join(
        f'<td class="n{_shade(norm, median)}" title="{format_value(norm)}, {escape(name)}"></td>'
        for norm, name in zip(norms, names, strict=True)
    )
    return f'<tr><th scope="row">{boundary_name(boundary)}: {format_value(median, 3)}</th>{cells}</tr>'


def _shade(norm: float, median: float) -> int | str:
    """0 the darkest; x where there is nothing to compare."""
    if not (median > 0 and math.isfinite(norm)):
        return "x"
    place = math.log(norm / median, RANGE) if norm > 0 else -1.0  # -1 .. 1
    return max(0, min(int(SHADES * (place + 1) / 2), SHADES - 1))


_LEGEND = (
    f"<p>Beside each boundary its median norm. 1/{RANGE:.0f} of it "
    + "".join(f'<i class="n{shade}"></i>' for shade in range(SHADES))
    + f' {RANGE:.0f} times; <i class="nx"></i> nothing to compare. Tokens in bold are the target\'s own. Look for'
    " columns that stand out at every depth, and for a median that breaks the growth.</p>"
)
_COLOURS = "".join(
    f".norm-map .n{shade}{{background:{to_hex(matplotlib.colormaps['cividis'](shade / (SHADES - 1)))}}}"
    for shade in range(SHADES)
)
_STYLE = f"""<style>
.norm-map{{overflow-x:auto;line-height:1.4}}
.norm-map table{{border-collapse:collapse;width:auto;margin:0}}
.norm-map caption{{text-align:left;white-space:normal;padding:.3em 0}}
.norm-map th,.norm-map td{{padding:0;border:0;min-width:1.25em;height:1em;line-height:1;font-size:.8rem}}
.norm-map tbody th{{padding-right:.5em;text-align:right;font-weight:normal;white-space:nowrap}}
.norm-map thead th{{vertical-align:bottom;text-align:left;font-weight:normal}}
.norm-map thead th span{{writing-mode:vertical-rl;transform:rotate(180deg)}}
.norm-map thead th span{{white-space:pre;max-height:9em;overflow:hidden}}
.norm-map .own{{font-weight:bold}}
.norm-map i{{display:inline-block;width:1.1em;height:.9em}}
.norm-map .nx{{background:repeating-linear-gradient(45deg,#d55e00 0 2px,#fff 2px 5px)}}
.norm-map td,.norm-map i{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
{_COLOURS}
</style>"""
