"""Which target token each draft id stands for, read from d2t and t2d by what they hold.

Trainers store d2t as offsets (target id = draft id + d2t[draft id]); llama.cpp's file, and some conversions,
store the target ids themselves. Both are lists of integers, so each reading is tried and the evidence decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from eagle3lib.dialects import Checkpoint
from eagle3lib.errors import InputError
from eagle3lib.tensors import read_tensor

Reading = Literal["offsets", "absolute ids", "t2d alone", "identity"]
#: So many neighbours in the target's vocabulary must be expected before their absence tells anything.
EXPECTED_NEIGHBOURS = 10


@dataclass(frozen=True)
class Vocabulary:
    """The draft's vocabulary.

    Attributes:
        target_ids: target id of every draft id.
        size: the target's vocabulary.
        reading: how d2t was read.
        why: what decided it, in words.
        all_zero: d2t holds nothing but zeros.
        t2d_differs: how many target tokens only one of d2t and t2d names; None without t2d.
        t2d_marks: how many tokens t2d marks; None without t2d.
        by_form: whether the reading is the form's own rule, so that engines of that form read it so too.
    """

    target_ids: Int[Tensor, " Vd"]
    size: int
    reading: Reading
    why: str
    all_zero: bool = False
    t2d_differs: int | None = None
    t2d_marks: int | None = None
    by_form: bool = False

    def __len__(self) -> int:
        return len(self.target_ids)

    def draft_ids(self) -> Int[Tensor, " V"]:
        """Draft id of every target id, -1 where the draft cannot say it."""
        inverse = torch.full((self.size,), -1, dtype=torch.long)
        inverse[self.target_ids] = torch.arange(len(self))
        return inverse

    def coverage(self, tokens: Int[Tensor, " T"]) -> float:
        """The share of these tokens that the draft can say at all: the ceiling of its acceptance."""
        if not len(tokens):
            return float("nan")
        return float(torch.isin(tokens, self.target_ids).double().mean())


def read_vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    """The draft's vocabulary, from its small tensors alone.

    Raises:
        InputError: if no reading gives distinct ids within the vocabulary, or sizes contradict each other.
    """
    tensors, path = checkpoint.tensors, checkpoint.path
    head = tensors.get("lm_head.weight")
    size = _target_size(checkpoint)
    marked = None
    if "t2d" in tensors:
        marked = read_tensor(tensors["t2d"]).bool().flatten().nonzero().flatten()
    if "d2t" in tensors:
        stored = read_tensor(tensors["d2t"]).long().flatten()
        if head and len(stored) != head.shape[0]:
            raise InputError(f"d2t in {path} has {len(stored)} entries and lm_head.weight {head.shape[0]} rows.")
        return _decide(checkpoint, stored, marked, size)
    n = head.shape[0] if head else size
    if n == size:
        return Vocabulary(torch.arange(n), size, "identity", "there is no d2t and the sizes are equal")
    if marked is not None and len(marked) == n:
        return Vocabulary(marked, size, "t2d alone", "there is no d2t; t2d in ascending order", False, 0, n)
    raise InputError(
        f"lm_head.weight in {path} has {n} rows for a vocabulary of {size}, and there is no d2t to say which tokens"
        " they are; export the checkpoint again with its vocabulary map."
    )


def _target_size(checkpoint: Checkpoint) -> int:
    size = checkpoint.config.get("vocab_size")
    if size is None:
        raise InputError(f"Expected vocab_size in {checkpoint.path / 'config.json'}, found none.")
    return int(size)


def _decide(checkpoint: Checkpoint, stored: Tensor, marked: Tensor | None, size: int) -> Vocabulary:
    index = torch.arange(len(stored))
    offsets, absolute = stored + index, stored
    if checkpoint.form == "llama_cpp" and _valid(absolute, size):
        why = "llama.cpp's converter adds the draft id to each"
        return Vocabulary(absolute, size, "absolute ids", why, by_form=True)
    zero = bool(len(stored)) and not bool(stored.any())

    def made(ids: Tensor, reading: Reading, why: str) -> Vocabulary:
        differs = None if marked is None else len(set(marked.tolist()) ^ set(ids.tolist()))
        return Vocabulary(ids, size, reading, why, zero, differs, None if marked is None else len(marked))

    fits = {"offsets": _valid(offsets, size), "absolute ids": _valid(absolute, size)}
    if not any(fits.values()):
        raise InputError(_neither(checkpoint, offsets, size))
    if marked is not None:
        for reading, ids in (("offsets", offsets), ("absolute ids", absolute)):
            if fits[reading] and torch.equal(ids.sort().values, marked):
                return made(ids, reading, "only so does d2t name the tokens that t2d marks")
    if not fits["absolute ids"]:
        return made(offsets, "offsets", "read as target ids they repeat or leave the vocabulary")
    if not fits["offsets"]:
        return made(absolute, "absolute ids", "read as offsets they repeat or leave the vocabulary")
    # Both readings are possible. Offsets of a real choice of frequent tokens hold runs of equal numbers, one
    # run for each stretch of neighbours in the target's vocabulary; n tokens of V have about n²/V neighbours.
    expected = len(stored) ** 2 / size
    if expected >= EXPECTED_NEIGHBOURS and bool((stored.diff() > 0).all()):
        why = f"as offsets they would name no two neighbours, where about {expected:.0f} are expected"
        return made(absolute, "absolute ids", why)
    return made(offsets, "offsets", "both readings are possible, and offsets are the custom")


def _valid(ids: Tensor, size: int) -> bool:
    inside = not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < size
    return inside and len(ids.unique()) == len(ids)


def _neither(checkpoint: Checkpoint, offsets: Tensor, size: int) -> str:
    path = checkpoint.path
    if not 0 <= int(offsets.min()) <= int(offsets.max()) < size:
        return (
            f"d2t in {path} maps draft ids to {int(offsets.min())} .. {int(offsets.max())}, outside the vocabulary of"
            f" {size}, and read as absolute ids it leaves the vocabulary or repeats too; is it another model's?"
        )
    return (
        f"d2t in {path} maps {len(offsets)} draft ids to {len(offsets.unique())} target ids; ids repeat, and read as"
        " absolute ids too."
    )
