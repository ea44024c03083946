"""Tensors that are kept for later under a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor


class Kept:
    """Tensors under a budget of bytes: beyond it the least recently used are dropped."""

    def __init__(self, budget: int) -> None:
        self.budget, self.bytes = budget, 0
        self._held: OrderedDict[object, tuple[Tensor, ...]] = OrderedDict()

    def get(self, key: object) -> tuple[Tensor, ...] | None:
        """What was kept, None where it was not or was dropped."""
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def put(self, key: object, value: tuple[Tensor, ...]) -> None:
        """Keep it, unless it alone is beyond the budget."""
        if _bytes(value) > self.budget:
            return
        self._held[key] = value
        self.bytes += _bytes(value)
        while self.bytes > self.budget:
            self.bytes -= _bytes(self._held.popitem(last=False)[1])


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
