"""Where recorded states stand in the depth of their model, told from how they lie to each other.

Each block adds a step to the residual stream, and the steps of different blocks are nearly orthogonal, so squared
angles between states of one token add up along the depth, and the true order is the shortest path:

    cost(order) = Σ angle(b_i, b_{i+1})²

A path knows no direction; that comes from the norms, which grow with depth. B(0) is nearly orthogonal to every deep
state and so is left out of the path; `anchors` proves it by other means.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.placement import Placement

#: Norms of a path's two ends that differ by this factor give its direction; else the one nearer to the ids is taken.
CLEAR_RISE = 2.0


@dataclass(frozen=True)
class Order:
    """The shortest path through some states, against the order of their stated ids.

    Attributes:
        stated: ids in ascending order, deeper than the embedding.
        best: the same ids in the order in which their states lie; directed as `stated` as far as possible.
        gain: by how much the legs in which the two differ are shorter, as a share of them; 0 where they are one path,
            in one direction or two.
        margin: where they agree, by how much the legs of the closest other order are longer, as a share of those it
            replaces; infinite where there is no other.
        rivals: ids whose places the closest other order exchanges.
        nearest: the smallest angle between two of the states, in degrees; infinite with fewer than two.
        norm_growth: median norm of the deepest stated id over that of the shallowest.
    """

    stated: tuple[int, ...]
    best: tuple[int, ...]
    gain: float
    margin: float
    rivals: tuple[int, ...]
    nearest: float
    norm_growth: float


def order(placement: Placement, left_out: Collection[Boundary] = (0,)) -> Order:
    """The order in which the states lie, the normed last state and those to be left out apart.

    The search starts at the stated order and takes the best of all reversals of a run and moves of one state until
    none shortens the path.
    """
    index = [i for i, b in enumerate(placement.boundaries) if b != FINAL_NORMED and b not in left_out]
    stated = tuple(placement.boundaries[i] for i in index)
    growth = float(placement.norms[index[-1]] / placement.norms[index[0]]) if index else 1.0
    squared = placement.angles[np.ix_(index, index)].astype(float) ** 2
    own = best = np.arange(len(index))
    moves = _moves(len(index))
    while len(moves):
        costs = _cost(squared, best[moves])
        if costs.min() >= _cost(squared, best) * (1 - 1e-9):
            break
        best = best[moves[costs.argmin()]]
    if len(best):
        norms = placement.norms[index]
        rise = norms[best[-1]] / norms[best[0]]
        turned = rise < 1 / CLEAR_RISE or (rise < CLEAR_RISE and _disorder(best[::-1]) < _disorder(best))
        best = best[::-1] if turned else best
    gain, margin, rivals = 0.0, np.inf, ()
    if not (best == own).all() and not (best == own[::-1]).all():
        gain = float(_savings(squared, own, best))
    elif len(moves):
        savings = _savings(squared, own, moves)
        closest = moves[savings.argmax()]
        margin, rivals = float(-savings.max()), tuple(stated[i] for i in np.flatnonzero(closest != own))
    apart = np.sqrt(squared[np.triu_indices(len(index), 1)])
    nearest = float(apart.min()) if len(apart) else np.inf
    return Order(stated, tuple(stated[i] for i in best), gain, margin, rivals, nearest, growth)


def misplaced(best: Sequence[int], doubtful: Collection[int] = ()) -> dict[int, tuple[int | None, int | None]]:
    """The fewest ids to move so that the rest stands in order, each with the ids between which its state lies.

    None stands for the end of the list. Of two choices as short, the one that moves more doubtful ids is taken.
    """
    kept = _longest_rising(best, doubtful)
    found = {}
    for position, boundary in enumerate(best):
        if boundary not in kept:
            below = [b for b in best[:position] if b in kept]
            above = [b for b in best[position:] if b in kept]
            found[boundary] = (below[-1] if below else None, above[0] if above else None)
    return dict(sorted(found.items()))


@cache
def _moves(n: int) -> np.ndarray:
    """[M, n] index orders: every reversal of a run and every move of one place, the whole turned round left out."""
    own, found = np.arange(n), {}
    for i in range(n):
        for j in range(i + 1, n):
            run, before, after = own[i : j + 1], own[:i], own[j + 1 :]
            for middle in (run[::-1], np.roll(run, 1), np.roll(run, -1)):
                moved = np.concatenate([before, middle, after])
                found[tuple(moved)] = moved
    found.pop(tuple(own[::-1]), None)
    return np.array(list(found.values()), dtype=int).reshape(len(found), n)


def _cost(squared: np.ndarray, orders: np.ndarray) -> np.ndarray:
    return squared[orders[..., :-1], orders[..., 1:]].sum(-1)


def _savings(squared: np.ndarray, own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """By how much the legs that only the other order has are shorter than those it replaces, as a share of these."""
    place = np.argsort(own)[others]
    shared = np.abs(np.diff(place, axis=-1)) == 1
    legs = squared[others[..., :-1], others[..., 1:]]
    lost = _cost(squared, own) - (legs * shared).sum(-1)
    return 1 - (legs * ~shared).sum(-1) / np.maximum(lost, 1e-9)  # equal states lie 0 apart


def _disorder(path: np.ndarray) -> int:
    """How many states would have to move."""
    return len(path) - len(_longest_rising(path.tolist()))


def _longest_rising(values: Sequence[int], doubtful: Collection[int] = ()) -> set[int]:
    """A longest rising subsequence, with the fewest doubtful values of those."""

    def weight(chain: list[int]) -> tuple[int, int]:
        return len(chain), -sum(value in doubtful for value in chain)

    chains: list[list[int]] = []
    for value in values:
        longest = max((chain for chain in chains if chain[-1] < value), key=weight, default=[])
        chains.append([*longest, value])
    return set(max(chains, key=weight, default=[]))
