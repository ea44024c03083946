"""The token ids by which a chat template marks the target's turns, supposed from the words of one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from eagle3lib.target import Target

#: By which templates name the one who answers.
ROLES = ("assistant", "model")
#: With which they end a turn.
ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|return|>", "<|endoftext|>", "</s>")


@dataclass(frozen=True)
class TurnMarks:
    """Ids for `turn_begins` and `turn_ends`, and the words that they stand for; empty where none were found."""

    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    words: str = ""


def supposed_marks(token_ids: Int[Tensor, " T"], target: Target | None) -> TurnMarks:
    """The marks around the first role that answers, such as "<|im_start|>assistant\\n" and "<|im_end|>"."""
    if target is None or target.token_texts is None:
        return TurnMarks()
    ids = token_ids.tolist()
    texts = [target.text(i) for i in ids]
    at = next((i for i, text in enumerate(texts) if text.strip() in ROLES and i > 0), None)
    if at is None:
        return TurnMarks()
    after = next((i for i in range(at + 1, len(ids)) if texts[i].strip()), len(ids))
    if texts[at - 1].startswith("<") and after < len(ids) and texts[after].startswith("<"):
        after += 1  # <|start_header_id|>assistant<|end_header_id|>, and the empty line behind it
        after = next((i for i in range(after, len(ids)) if texts[i].strip()), len(ids))
    end = next((i for i in range(after, len(ids)) if texts[i] in ENDS), None)
    words = "".join(texts[at - 1 : after]) + (f" ... {texts[end]}" if end is not None else "")
    return TurnMarks(tuple(ids[at - 1 : after]), () if end is None else (ids[end],), words)
