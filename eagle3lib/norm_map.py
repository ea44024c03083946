"""Norms token by token: how loud each boundary's state of each token is, under the tokens' texts.

Texts come from a target's vocabulary and from users' prompts: everything is escaped, and a page for sharing can
hide them. Shades grow lighter with the norm, in grey as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

import matplotlib
import torch
from jaxtyping import Float
from matplotlib.colors import to_hex
from torch import Tensor

from eagle3lib.boundaries import boundary_name
from eagle3lib.markup import format_value
from eagle3lib.sample import Sample
from eagle3lib.token_text import visible

#: Tokens beside each other.
SHOWN = 40
SHADES = 12


def token_norms(sample: Sample, first: int, count: int = SHOWN) -> Float[Tensor, "B W"]:
    """‖h‖ of every boundary, in stored order, and of up to `count` tokens from `first` on; no other row is read."""
    rows = min(len(state) for state in sample.states.values())
    states = (state[first : min(first + count, rows)] for state in sample.states.values())
    return torch.stack([state.double().norm(dim=-1).float() for state in states])


def norm_map_html(
    sample: Sample, first: int, scale: tuple[float, float], text: Callable[[int], str], hide_text: bool = False
) -> str:
    """A map of `SHOWN` tokens from `first` on, or the last ones: a row a boundary, a column a token.

    Args:
        scale: the norms of the darkest and the lightest shade; between them shades are logarithmic.
        text: a token's text by id, as `Target.text`.
        hide_text: show positions in place of texts, and no name.
    """
    rows = min(len(state) for state in sample.states.values())
    first = max(min(first, rows - SHOWN), 0)
    norms = token_norms(sample, first)
    aligned = rows >= len(sample.token_ids) - 1  # else nobody knows which token a row is of
    names = [f"row {first + i}" for i in range(norms.shape[1])]
    if aligned:
        told = [visible(text(token)) for token in sample.token_ids[first : first + norms.shape[1]].tolist()]
        names = [f"token {first + i}" + ("" if hide_text else f" {piece}") for i, piece in enumerate(told)]
    heads = told if aligned and not hide_text else [str(first + i) for i in range(norms.shape[1])]
    own = sample.loss_mask[first : first + len(heads)].tolist() if aligned else [False] * len(heads)
    head = "".join(map(_head, heads, names, own))
    body = "".join(
        _row(boundary_name(boundary), row, names, scale)
        for boundary, row in zip(sample.states, norms.tolist(), strict=True)
    )
    caption = f"{'' if hide_text else sample.name + ', '}{names[0]} to {names[-1]}. " if names else "No state is held. "
    caption += _loudest(norms, list(sample.states), names)
    return (
        f'<div class="norm-map" tabindex="0" role="region" aria-label="{escape(caption)}">{_STYLE}'
        f"<table><caption>{escape(caption)}</caption><thead><tr><td></td>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{_legend(scale)}</div>"
    )


def _loudest(norms: Float[Tensor, "B W"], boundaries: Sequence, names: Sequence[str]) -> str:
    """In words: the state that is the furthest above its boundary's median."""
    ratio = (norms / norms.median(dim=1, keepdim=True).values).nan_to_num(0, 0, 0) if norms.numel() else norms
    if not ratio.numel() or not ratio.max() > 0:
        return "No norm is above 0."
    row, column = divmod(int(ratio.argmax()), ratio.shape[1])
    return (
        f"The furthest above its boundary's median: {names[column]} at {boundary_name(boundaries[row])},"
        f" {format_value(float(norms[row, column]))}, {float(ratio[row, column]):.1f} times."
    )


def _head(text: str, name: str, own: bool) -> str:
    return f'<th scope="col" title="{escape(name)}"><span{" class=own" if own else ""}>{escape(text)}</span></th>'


def _row(boundary: str, norms: Sequence[float], names: Sequence[str], scale: tuple[float, float]) -> str:
    cells = "".join(_cell(norm, name, scale) for norm, name in zip(norms, names, strict=True))
    return f'<tr><th scope="row">{boundary}</th>{cells}</tr>'


def _cell(norm: float, name: str, scale: tuple[float, float]) -> str:
    shade = "x" if not math.isfinite(norm) else _shade(norm, scale)
    return f'<td class="n{shade}" title="{format_value(norm)}, {escape(name)}"></td>'


def _shade(norm: float, scale: tuple[float, float]) -> int:
    low, high = scale
    if not 0 < low < high or norm <= low:
        return 0
    return min(int(SHADES * math.log(norm / low) / math.log(high / low)), SHADES - 1)


def _legend(scale: tuple[float, float]) -> str:
    swatches = "".join(f'<i class="n{shade}"></i>' for shade in range(SHADES))
    low, high = (format_value(value, 3) for value in scale)
    return (
        f"<p>Norm: {low} {swatches} {high}, logarithmic; hatched where it is not finite. Underlined tokens are the"
        " target's own. Look for columns that stand out at every depth, and for rows that break the growth.</p>"
    )


_COLOURS = "".join(
    f".norm-map .n{shade}{{background:{to_hex(matplotlib.colormaps['cividis'](shade / (SHADES - 1)))}}}"
    for shade in range(SHADES)
)
_STYLE = f"""<style>
.norm-map{{overflow-x:auto}}
.norm-map table{{border-collapse:collapse;width:auto;margin:0}}
.norm-map caption{{text-align:left;white-space:normal;padding:.3em 0}}
.norm-map th,.norm-map td{{padding:0;border:0;min-width:1.25em;height:1em;line-height:1;font-size:.8rem}}
.norm-map tbody th{{padding-right:.5em;text-align:right;font-weight:normal;white-space:nowrap}}
.norm-map thead th{{vertical-align:bottom;text-align:left;font-weight:normal}}
.norm-map thead th span{{writing-mode:vertical-rl;transform:rotate(180deg)}}
.norm-map thead th span{{white-space:pre;max-height:9em;overflow:hidden}}
.norm-map .own{{border-right:2px solid currentColor}}
.norm-map i{{display:inline-block;width:1.1em;height:.9em}}
.norm-map .nx{{background:repeating-linear-gradient(45deg,#d55e00 0 2px,#fff 2px 5px)}}
.norm-map td,.norm-map i{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
{_COLOURS}
</style>"""
