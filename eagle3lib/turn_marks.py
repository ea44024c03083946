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
#: Tokens that a role's name may be cut into.
LONGEST_ROLE = 3


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
    for at in (i for i, text in enumerate(texts) if _is_mark(text)):
        role = next((n for n in range(1, LONGEST_ROLE + 1) if "".join(texts[at + 1 : at + 1 + n]) in ROLES), None)
        if role is None:
            continue
        begin = at + 1 + role
        if begin < len(ids) and _is_mark(texts[begin]):  # <|start_header_id|>assistant<|end_header_id|>
            begin += 1
        while begin < len(ids) and not texts[begin].strip():
            begin += 1
        # A sequence that was cut off has no end of its own; the turns before it have.
        end = next((i for i in (*range(begin, len(ids)), *range(begin)) if texts[i] in ENDS), None)
        words = "".join(texts[at:begin]) + (f" ... {texts[end]}" if end is not None else "")
        return TurnMarks(tuple(ids[at:begin]), () if end is None else (ids[end],), words)
    return TurnMarks()


def _is_mark(text: str) -> bool:
    return text.startswith("<") and text.endswith(">")
