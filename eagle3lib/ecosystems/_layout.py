"""What a dump layout offers: which folders it fits, its files in order, their samples, and its rule for boundaries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from jaxtyping import Bool, Float, Int
from torch import Tensor

from eagle3lib.axes import AXES, Known, split_states
from eagle3lib.boundaries import Boundary
from eagle3lib.ecosystems._base import TargetShape, Trainer
from eagle3lib.ecosystems._config_ids import LayerIds
from eagle3lib.ecosystems._files import entry
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.sample import TeacherProbs


@dataclass(frozen=True)
class StoredSample:
    """One sample as its file holds it. States are views of a mapped file wherever it can be mapped.

    Attributes:
        states: every stored state, in stored order.
        loss_mask: None where the layout holds none.
        logprobs: the target's own, of each token given those before it.
        boundaries: of the states, where the file itself says.
        first_position: position of token 0 in the recorded sequence.
        temperature: of the response, where the file says.
        last_normed: whether the last state is behind the final norm, where the file tells.
        note: one sentence on what the file leaves open, "" where nothing.
    """

    name: str
    token_ids: Int[Tensor, " T"]
    states: tuple[Float[Tensor, "R H"], ...]
    loss_mask: Bool[Tensor, " T"] | None = None
    logprobs: Float[Tensor, " T"] | None = None
    teacher: TeacherProbs | None = None
    boundaries: tuple[Boundary, ...] | None = None
    first_position: int = 0
    temperature: float | None = None
    last_normed: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class Origin:
    """What a layout's rule may depend on besides the file.

    Attributes:
        slots: the boundaries that fed `fc`, by the draft's ids or its trainer's default.
        ids: as the draft's config.json lists them, read by `trainer`.
    """

    trainer: Trainer
    ids: LayerIds
    target: TargetShape | None = None
    slots: tuple[Boundary, ...] | None = None


class Layout(ABC):
    """One way in which a trainer or engine writes hidden states to disk."""

    name: str
    label: str
    #: Whether `files` come in the order of their numbers however many there are.
    ordered = False
    #: Whether it is recognised by so little that others are tried first.
    general = False

    @abstractmethod
    def fits(self, glance: Glance) -> bool:
        """Whether the folder is of this layout."""

    @abstractmethod
    def files(self, folder: Path) -> Iterator[Path]:
        """The sample files, found while they are asked for."""

    @abstractmethod
    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        """The samples of one file.

        Raises:
            InputError: if the file is broken or not of this layout.
        """

    def boundaries(self, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
        """The boundaries of a sample's states by the layout's own rule; None where it has none that fits them."""
        return stored.boundaries


def last_and_aux(
    data: dict, keys: tuple[str, str], n_tokens: int, known: Known, where: Path | str
) -> tuple[Float[Tensor, "R H"], ...]:
    """The states that feed `fc`, and behind them the last one, of the layouts that store the two apart.

    Args:
        keys: of the last state, then of the others, which may be left out.

    Raises:
        InputError: if the last state is missing, or sizes do not fit the tokens.
    """
    last_key, aux_key = keys
    (last,) = split_states(
        entry(data, last_key, where), n_tokens, known, f"{last_key} of {where}", documented=AXES, count=1
    )
    aux = data.get(aux_key)
    if not isinstance(aux, Tensor) or aux.numel() == 0:  # left out on request, or an empty tensor in its place
        return (last,)
    size = replace(known, hidden_size=known.hidden_size or last.shape[1])
    return (*split_states(aux, n_tokens, size, f"{aux_key} of {where}", documented=AXES), last)


def slots_then(last: Boundary, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
    """The rule of the layouts that store what feeds `fc` and after it the last state."""
    if origin.slots is None or len(stored.states) != len(origin.slots) + 1:
        return None
    return (*origin.slots, last)
