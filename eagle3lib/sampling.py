"""How tokens are drawn from logits: temperature, top-k and top-p, and the log-probabilities they leave.

    p(v) ∝ exp(z_v / T)  over the kept tokens, 0 elsewhere
    top-k keeps z_v >= the k-th largest logit
    top-p keeps the fewest largest tokens whose mass, of those that top-k kept, reaches p

Tokens that tie at a limit are all kept. Temperature comes first in most engines; where it comes last, the
mass of top-p is taken at temperature 1. Which engine does which stands in `ecosystems`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Largest logits kept of each row while a vocabulary is read in chunks. Where top-p needs more of a row, the
#: row is read whole.
LARGEST = 1024
#: Logits of whole rows that are held at a time, in float32: 64 MiB.
WHOLE_ROWS = 2**24

Chunks = Callable[[Tensor], Iterator[tuple[int, Tensor]]]


@dataclass(frozen=True)
class Sampling:
    """How an engine draws. Temperature 0 is greedy, and then nothing else counts.

    Attributes:
        top_k: None keeps all.
        top_p: 1 keeps all.
        temperature_last: truncate first, at temperature 1.
    """

    temperature: float
    top_k: int | None = None
    top_p: float = 1.0
    temperature_last: bool = False

    def __post_init__(self) -> None:
        if self.temperature < 0 or (self.top_k is not None and self.top_k < 1) or not 0 < self.top_p <= 1:
            raise ValueError(f"temperature >= 0, top_k >= 1 and 0 < top_p <= 1 are needed, found {self}")

    def __str__(self) -> str:
        if self.temperature == 0:
            return "greedy"
        cuts = [f"top-k {self.top_k}"] * (self.top_k is not None) + [f"top-p {self.top_p:g}"] * (self.top_p < 1)
        return ", ".join([f"temperature {self.temperature:g}", *cuts])

    @property
    def truncates(self) -> bool:
        """Whether some tokens may be left without probability."""
        return self.top_k is not None or self.top_p < 1


@dataclass(frozen=True)
class Distribution:
    """What rows of logits say of some tokens, under a `Sampling`."""

    logprob: Float[Tensor, "R M"]  # natural; -inf where truncated
    entropy: Float[Tensor, " R"]  # of the whole truncated distribution, nats


def distribution(logits: Float[Tensor, "R V"], ids: Int[Tensor, "R M"], sampling: Sampling) -> Distribution:
    """Log-probabilities of some tokens of whole rows; an id of -1 has none.

    Raises:
        ValueError: for greedy sampling, which has no probabilities.
    """
    logits = logits.float()
    largest = logits.sort(-1, descending=True).values if sampling.truncates else logits
    return _read(logits.gather(-1, ids.clamp_min(0)), ids, sampling, _cut(largest, logits.shape[1], None, sampling)[0])


def chunked_distribution(
    chunks: Chunks, n_rows: int, vocab_size: int, ids: Int[Tensor, "R M"], sampling: Sampling
) -> Distribution:
    """The same, exactly, without a [R, V] block.

    One pass over the vocabulary keeps each row's normaliser and its `LARGEST` largest logits, which settle
    where to cut; rows too flat for that are read again, a few at a time and whole.

    Args:
        chunks: given row numbers, yields (first id, logits [R, chunk]) from the vocabulary's start to its end.
    """
    kept = max(LARGEST, (sampling.top_k or 0) + 1)
    largest = torch.empty(n_rows, 0)
    picked = torch.full(ids.shape, -torch.inf)
    # What top-p is a share of, or, where nothing is cut, what normalises.
    scale = 1.0 if sampling.temperature_last and sampling.truncates else sampling.temperature
    mass = _Mass(n_rows)
    for begin, logits in chunks(torch.arange(n_rows)):
        end = begin + logits.shape[1]
        inside = (ids >= begin) & (ids < end)
        picked = torch.where(inside, logits.gather(-1, (ids - begin).clamp(0, end - begin - 1)), picked)
        if sampling.truncates:
            merged = torch.cat([largest, logits], dim=1)
            largest = merged.topk(min(kept, merged.shape[1]), dim=1).values  # in descending order
        mass.add(logits / scale)
    cut, unsettled = _cut(largest, vocab_size, mass, sampling)
    found = _read(picked, ids, sampling, cut)
    again = unsettled.nonzero().flatten()
    for rows in again.split(max(WHOLE_ROWS // vocab_size, 1)) if len(again) else ():
        whole = distribution(torch.cat([logits for _, logits in chunks(rows)], dim=1), ids[rows], sampling)
        found.logprob[rows], found.entropy[rows] = whole.logprob, whole.entropy
    return found


class _Mass:
    """log Σ e^y and Σ e^y y of rows of scaled logits y, chunk by chunk."""

    def __init__(self, n_rows: int, device: torch.device | None = None) -> None:
        self.log_total = torch.full((n_rows,), -torch.inf, device=device)
        self.mean = torch.zeros(n_rows, device=device)  # Σ e^y y / Σ e^y

    def add(self, y: Float[Tensor, "R C"]) -> None:
        top = y.amax(-1)
        weight = (y - top[:, None]).exp_()
        part = weight.sum(-1)
        log_part, mean = top + part.log(), torch.linalg.vecdot(weight, y) / part
        total = torch.logaddexp(self.log_total, log_part)
        share = (log_part - total).exp()
        self.mean = self.mean * (1 - share) + mean * share
        self.log_total = total


@dataclass(frozen=True)
class _Cut:
    """Where rows are cut: the smallest logit kept, and log Σ e^(z/T) and mean z/T of what is kept."""

    smallest: Float[Tensor, " R"]
    log_total: Float[Tensor, " R"]
    mean: Float[Tensor, " R"]


def _cut(largest: Float[Tensor, "R L"], vocab_size: int, mass: _Mass | None, sampling: Sampling) -> tuple[_Cut, Tensor]:
    """The cut of each row from its largest logits in descending order, and the rows that need more of them.

    Args:
        largest: whole rows, in any order, where nothing is cut.
        mass: of whole rows, at the temperature that top-p goes by; None where `largest` is the whole row.
    """
    if sampling.temperature == 0:
        raise ValueError("greedy decoding has no probabilities to compare")
    (n, held), device = largest.shape, largest.device
    scaled = largest / sampling.temperature
    if not sampling.truncates:
        if mass is None:
            mass = _Mass(n, device)
            mass.add(scaled)
        nothing = torch.full((n,), -torch.inf, device=device)
        return _Cut(nothing, mass.log_total, mass.mean), torch.zeros(n, dtype=torch.bool, device=device)
    last = torch.full((n,), vocab_size, device=device)  # how many tokens are kept, before ties
    if sampling.top_k is not None:
        last = last.clamp_max(sampling.top_k)
    if sampling.top_p < 1:
        y = largest if sampling.temperature_last else scaled
        if sampling.top_k is not None and sampling.top_k < held:
            floor = largest[:, sampling.top_k - 1, None]
            y = y.masked_fill(largest < floor, -torch.inf)
            total = y.logsumexp(-1)
        elif mass is None:
            total = y.logsumexp(-1)
        else:
            total = mass.log_total
        share = (y - total[:, None]).double().exp()
        before = share.cumsum(-1) - share  # the mass of larger tokens
        last = torch.minimum(last, (before < sampling.top_p).sum(-1).clamp_min(1))
    smallest = largest.gather(-1, (last - 1).clamp_max(held - 1)[:, None])[:, 0]
    # A limit at the last held logit may hide tokens that tie with it, or a set that goes on.
    unsettled = (smallest <= largest[:, -1]) & (held < vocab_size)
    kept = scaled.masked_fill(largest < smallest[:, None], -torch.inf)
    log_total = kept.logsumexp(-1)
    share = (kept - log_total[:, None]).exp()
    return _Cut(smallest, log_total, (share * scaled).sum(-1)), unsettled


def _read(z: Float[Tensor, "R M"], ids: Int[Tensor, "R M"], sampling: Sampling, cut: _Cut) -> Distribution:
    """log p = z/T - log Σ e^(z/T), and H = log Σ e^(z/T) - mean of z/T, over what is kept."""
    gone = (z < cut.smallest[:, None]) | (ids < 0)
    logprob = (z / sampling.temperature - cut.log_total[:, None]).masked_fill(gone, -torch.inf)
    return Distribution(logprob, cut.log_total - cut.mean)
