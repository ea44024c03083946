"""Which axis of a stored tensor is tokens, which states and which hidden: known by their sizes, never guessed.

Files hold the states of a sequence as [tokens, states, hidden], in any order of these, behind a batch axis of
one, or with all states concatenated on the last axis. What comes out are views: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from jaxtyping import Float
from torch import Tensor

from eagle3lib.errors import InputError

TOKENS, STATES, HIDDEN = AXES = ("tokens", "states", "hidden")
#: Rows that a sequence of T tokens may have: the last token was never an input, nor was one sampled beyond it.
MISSING_ROWS = (0, 1, 2)


@dataclass(frozen=True)
class Known:
    """What is known of a dump's tensors from elsewhere.

    Attributes:
        hidden_size: the target's.
        n_states: how many states the case states; it tells axes apart where sizes alone do not.
        axes: the order of a stored tensor's axes, as the case states it.
    """

    hidden_size: int | None = None
    n_states: int | None = None
    axes: tuple[str, ...] | None = None


def split_states(
    tensor: Tensor,
    n_tokens: int,
    known: Known,
    where: str,
    *,
    documented: Sequence[str] | None = None,
    count: int | None = None,
) -> tuple[Float[Tensor, "R H"], ...]:
    """The states of a tensor that holds one or several of a sequence, each a view [R, H].

    Args:
        documented: the order of axes that the layout's writer uses; another is looked for only where it does not fit.
        count: how many states there are, where that is known.

    Raises:
        InputError: if no order of axes fits the sizes, or several do.
    """
    if not tensor.is_floating_point():
        raise InputError(f"Expected numbers with a fraction in {where}, found {str(tensor.dtype).split('.')[-1]}.")
    shape = list(tensor.shape)
    while tensor.ndim > 2 and tensor.shape[0] == 1 and (tensor.ndim > 3 or n_tokens != 1):
        tensor = tensor[0]  # a batch of one
    if tensor.ndim not in (2, 3):
        raise InputError(f"Expected one sequence's states [tokens, states, hidden size] in {where}, found {shape}.")
    fitting = _orders(tuple(tensor.shape), n_tokens, known.hidden_size, count)
    for preferred in (known.axes, documented):
        chosen = tuple(axis for axis in preferred or () if tensor.ndim == 3 or axis != STATES)
        if chosen in fitting:
            fitting = [chosen]
        elif preferred is not None and preferred == known.axes:
            raise InputError(f"The axes {list(preferred)} stated for {where} do not fit {shape} and {n_tokens} tokens.")
    if len(fitting) > 1 and tensor.ndim == 3:
        fitting = [o for o in fitting if tensor.shape[o.index(STATES)] == known.n_states] or fitting
    if not fitting:
        size = f", hidden size {known.hidden_size}" if known.hidden_size else ""
        raise InputError(
            f"Expected [tokens, states, hidden size] in {where} for {n_tokens} tokens{size}, found {shape}; rows must"
            " match tokens, so dump again with prefix caching and chunked prefill off."
        )
    if len(fitting) > 1:
        raise InputError(
            f"Cannot tell which axis of {shape} in {where} is which ({n_tokens} tokens); state it in the case, as in"
            f" axes = {list(fitting[0])}."
        )
    (order,) = fitting
    if tensor.ndim == 3:
        stacked = tensor.permute([order.index(axis) for axis in (STATES, TOKENS, HIDDEN)])
        return tuple(stacked)
    rows = tensor if order[0] == TOKENS else tensor.T
    return _cut(rows, known.hidden_size, count or (None if known.hidden_size else known.n_states), where)


def _orders(shape: tuple[int, ...], n_tokens: int, hidden_size: int | None, count: int | None) -> list[tuple[str, ...]]:
    """The orders of axes that the sizes allow, by the fullest number of rows that any allows."""
    names = AXES if len(shape) == 3 else (TOKENS, HIDDEN)
    for missing in MISSING_ROWS:
        found = []
        for order in permutations(names):
            sizes = dict(zip(order, shape, strict=True))
            width, states = sizes[HIDDEN], sizes.get(STATES)
            if sizes[TOKENS] != n_tokens - missing or 0 in shape:
                continue
            if states is not None and (count not in (None, states) or hidden_size not in (None, width)):
                continue
            if states is None and hidden_size and width % hidden_size:
                continue
            found.append(order)
        if found:
            return found
    return []


def _cut(rows: Float[Tensor, "R W"], hidden_size: int | None, count: int | None, where: str) -> tuple[Tensor, ...]:
    """States concatenated on the last axis, apart."""
    width = rows.shape[1]
    if hidden_size is None and count is None:
        raise InputError(
            f"Expected [tokens, states, hidden size] in {where}, found {list(rows.shape)}, which may be several states"
            " in one; name the target in the case, whose hidden size tells them apart."
        )
    size = hidden_size or width // count
    if width % size or (count is not None and width != count * size):
        raise InputError(f"Expected {count or 'some'} states of size {size} in {where}, found {list(rows.shape)}.")
    return rows.split(size, dim=1)
