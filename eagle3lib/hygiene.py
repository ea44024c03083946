"""What stored states look like as numbers: values, rows and channels of every boundary, in one pass over a dump.

Only sums by channel, a histogram of norms and some counts are kept, whatever the length of the dump.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from eagle3lib.anchors import first_token, is_embedding
from eagle3lib.boundaries import Boundary, boundary_name
from eagle3lib.errors import InputError
from eagle3lib.sample import Sample
from eagle3lib.target import Target

#: Norms are counted in bins of 1 %, from 1e-6 to 1e9; quantiles are so exact.
BIN, LOWEST, HIGHEST = 0.01, 1e-6, 1e9
#: The largest finite float16.
FLOAT16_MAX = torch.finfo(torch.float16).max
#: How many samples with missing rows are kept by name.
KEPT = 16


@dataclass(eq=False)
class StateValues:
    """Sums over the rows of one boundary. Rows with a value that is not finite are in the counts alone.

    Attributes:
        rows: all of them.
        non_finite: values that are NaN or infinite; `non_finite_rows` rows that hold one.
        zero_rows: rows of zeros only.
        repeated_rows: rows equal to an earlier row of their sample that they cannot equal, see `_repeated`.
        saturated: values at the largest float16, or infinite in a float16 file.
        norm_counts: histogram of log norms, see `BIN`; `smallest` and `largest` norm are exact.
        squares: [H] sums of squares; `low` and `high` [H] extremes of each channel.
    """

    rows: int = 0
    non_finite: int = 0
    non_finite_rows: int = 0
    zero_rows: int = 0
    repeated_rows: int = 0
    saturated: int = 0
    smallest: float = float("inf")
    largest: float = 0.0
    norm_counts: Tensor = field(default_factory=lambda: torch.zeros(_bin(torch.tensor(HIGHEST)) + 1, dtype=torch.long))
    squares: Float[Tensor, " H"] | None = None
    low: Float[Tensor, " H"] | None = None
    high: Float[Tensor, " H"] | None = None

    @property
    def finite_rows(self) -> int:
        """Rows behind norms and channels."""
        return self.rows - self.non_finite_rows

    def norm_quantile(self, share: float) -> float:
        """A quantile of the norms of finite rows that are not zero, to 1 %; NaN without one."""
        total = int(self.norm_counts.sum())
        if not total:
            return float("nan")
        place = int(torch.searchsorted(self.norm_counts.cumsum(0), max(share * total, 1)))
        return float(min(max(LOWEST * torch.e ** ((place + 0.5) * BIN), self.smallest), self.largest))

    @property
    def channel_ratio(self) -> Float[Tensor, " H"]:
        """Each channel's rms over the median channel's; zeros where every value is zero or none is finite."""
        if self.squares is None:
            return torch.zeros(1)
        rms = self.squares.sqrt()
        return rms / rms.median() if rms.median() > 0 else torch.zeros_like(rms)

    @property
    def constant_channels(self) -> list[int]:
        """Channels that never change; [] with fewer than two finite rows."""
        if self.low is None or self.finite_rows < 2:
            return []
        return (self.low == self.high).nonzero().flatten().tolist()


@dataclass(frozen=True)
class Short:
    """A sample that lacks rows for two tokens or more.

    Attributes:
        first: the token that row 0 belongs to, told by the embedding; None where it was not asked or fits nowhere.
    """

    name: str
    tokens: int
    rows: int
    first: int | None = None


@dataclass(frozen=True, eq=False)
class DumpValues:
    """What one pass over a dump found.

    Attributes:
        states: by boundary, in stored order.
        samples: read; `tokens` in them.
        short: the first samples that lack rows for two tokens or more; `short_count` counts all of them.
    """

    states: dict[Boundary, StateValues]
    samples: int
    tokens: int
    short: tuple[Short, ...]
    short_count: int


def measure_values(samples: Iterable[Sample], target: Target | None = None) -> DumpValues:
    """Read every value of a dump once.

    Args:
        target: whose embedding tells which tokens a short sample's rows belong to, where B(0) is held, and which state
            is the embedding under another name, so that its rows repeat with their tokens.

    Raises:
        InputError: if a sample has more rows than tokens, its states differ in width from those before, or a token is
            outside the target's vocabulary.
    """
    states: dict[Boundary, StateValues] = {}
    short: list[Short] = []
    count = tokens = short_count = 0
    for sample in samples:
        n = len(sample.token_ids)
        count, tokens = count + 1, tokens + n
        rows = min(len(state) for state in sample.states.values())
        if rows < n - 1:
            short_count += 1
            if len(short) < KEPT:
                first = first_token(target, sample) if target is not None and 0 in sample.states else None
                short.append(Short(sample.name, n, rows, first))
        for boundary, state in sample.states.items():
            _expect_shape(sample, boundary, state, states)
            _add(states.setdefault(boundary, StateValues()), boundary, state, sample.token_ids, target)
    return DumpValues(states, count, tokens, tuple(short), short_count)


def _expect_shape(sample: Sample, boundary: Boundary, state: Tensor, seen: dict[Boundary, StateValues]) -> None:
    if len(state) > len(sample.token_ids):
        raise InputError(
            f"Expected at most {len(sample.token_ids)} rows of {boundary_name(boundary)} in {sample.name}, one a token,"
            f" found {len(state)}; tokens and states are of different requests, dump again."
        )
    width = next((v.squares.shape[0] for v in seen.values() if v.squares is not None), state.shape[1])
    if state.shape[1] != width:
        raise InputError(
            f"Expected {width} channels of {boundary_name(boundary)} in {sample.name}, as the states before it,"
            f" found {state.shape[1]}; is the file of another model?"
        )


def _add(values: StateValues, boundary: Boundary, stored: Tensor, token_ids: Tensor, target: Target | None) -> None:
    """Count one sample's rows in."""
    state = stored.float()
    aligned = len(state) >= len(token_ids) - 1  # else nobody knows which token a row is of
    values.rows += len(state)
    square = state.square()
    norm = square.sum(-1).sqrt()
    if not norm.isfinite().all():
        # A square may overflow where the value does not, so the values themselves are asked.
        finite = state.isfinite()
        whole = finite.all(-1)
        values.non_finite += int((~finite).sum())
        values.non_finite_rows += int((~whole).sum())
        if stored.dtype == torch.float16:
            values.saturated += int(state.isinf().sum())
        state, token_ids = state[whole], token_ids[: len(whole)][whole]
        square = state.square()
        norm = state.double().square().sum(-1).sqrt().float()
    if not len(state):
        return
    low, high = torch.aminmax(state, dim=0)
    values.low = low if values.low is None else torch.minimum(values.low, low)
    values.high = high if values.high is None else torch.maximum(values.high, high)
    channel = square.sum(0)
    values.squares = channel if values.squares is None else values.squares + channel
    if max(float(high.max()), -float(low.min())) >= FLOAT16_MAX and stored.dtype != torch.bfloat16:
        values.saturated += int((state.abs() == FLOAT16_MAX).sum())
    values.zero_rows += int((norm == 0).sum())
    held = norm[norm > 0]
    if len(held):
        values.smallest = min(values.smallest, float(held.min()))
        values.largest = max(values.largest, float(held.max()))
        values.norm_counts += torch.bincount(_bin(held), minlength=len(values.norm_counts))
    if boundary != 0 or aligned:
        token_ids = token_ids[: len(state)]
        repeated = _repeated(state, norm, token_ids, boundary)
        if repeated and boundary != 0 and target is not None and is_embedding(target, state, token_ids):
            repeated = _repeated(state, norm, token_ids, 0)
        values.repeated_rows += repeated


def _bin(norm: Tensor) -> Tensor:
    """The bin of a norm: its logarithm above `LOWEST` in steps of `BIN`."""
    return ((norm.clamp(LOWEST, HIGHEST) / LOWEST).log() / BIN).long()


def _repeated(state: Float[Tensor, "R H"], norm: Float[Tensor, " R"], token_ids: Tensor, boundary: Boundary) -> int:
    """Rows equal to an earlier one: at B(0) of another token, deeper of any.

    Deeper, two tokens in different contexts never have one state but over the run of one token that a sequence may
    begin with, where every attention averages equal values. Equal rows have equal norms, so only those are compared.
    """
    order = norm.sort(stable=True).indices
    before, after = order[:-1], order[1:]
    equal = (norm[before] == norm[after]) & (norm[after] > 0)
    equal[equal.clone()] = (state[before[equal]] == state[after[equal]]).all(-1)
    if boundary == 0:
        group = torch.cat([torch.zeros(1, dtype=torch.long), (~equal).cumsum(0)])
        firsts = order[torch.searchsorted(group, group)]  # the earliest row of each row's group
        return int((token_ids[order] != token_ids[firsts]).sum())
    changes = (token_ids != token_ids[0]).nonzero()
    leading = int(changes[0]) if len(changes) else len(token_ids)
    return int((after[equal] >= leading).sum())
