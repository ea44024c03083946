"""The loss mask of a dump that holds none, from what the case says of its turns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from eagle3lib.errors import InputError


@dataclass(frozen=True)
class TurnRule:
    """Where the target's own tokens begin and end.

    Attributes:
        prompt_length: tokens before the one response, the same in every sample.
        begins: the token ids after which a turn begins, such as those of "<|im_start|>assistant\\n".
        ends: the token ids that end a turn; the first of them belongs to it.
    """

    prompt_length: int | None = None
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    def mask(self, token_ids: Int[Tensor, " T"], name: str) -> Bool[Tensor, " T"]:
        """True where the target generated the token.

        Raises:
            InputError: if nothing says where turns begin.
        """
        mask = torch.zeros(len(token_ids), dtype=torch.bool)
        if self.prompt_length is not None:
            mask[self.prompt_length :] = True
            return mask
        if not self.begins:
            raise InputError(
                f"{name} holds no loss mask, so nothing says which tokens the target generated; state prompt_length, or"
                " turn_begins and turn_ends (token ids), for the dump in the case."
            )
        ids = token_ids.tolist()
        at = 0
        while (at := _find(ids, self.begins, at)) is not None:
            begin = at + len(self.begins)
            end = _find(ids, self.ends, begin) if self.ends else None
            at = len(ids) if end is None else end + 1
            mask[begin:at] = True
        return mask


def _find(ids: list[int], wanted: tuple[int, ...], start: int) -> int | None:
    """The first place of a run of ids from `start` on."""
    n = len(wanted)
    return next((i for i in range(start, len(ids) - n + 1) if tuple(ids[i : i + n]) == wanted), None)
