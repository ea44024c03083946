"""Two records of one request's tokens: where they part, and what is usually behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3lib.errors import InputError
from eagle3lib.target import Target

#: Tokens shown on either side of the first difference, and searched for its cause.
AROUND = 12
#: Under these names a request's or a response's JSON holds the prompt's ids.
ID_KEYS = ("prompt_token_ids", "input_ids", "token_ids", "prompt")
#: Names of the speakers in chat templates.
ROLES = ("system", "user", "assistant", "model", "human")


@dataclass(frozen=True)
class PrefixDifference:
    """The first difference of two token lists; `at` is None where the shorter one is a prefix of the longer.

    Attributes:
        ours, theirs: texts of the tokens around it, in each list.
        suggests: what is usually behind such a difference, in words.
    """

    at: int | None
    lengths: tuple[int, int]
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    suggests: str


def read_token_ids(source: Path | str) -> list[int]:
    """A server's ids from a file: a JSON list, a JSON object that holds one, or numbers parted by spaces or commas.

    Raises:
        InputError: if the file is missing or holds anything else.
    """
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Expected a file of token ids at {path}, which cannot be read ({error}).") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or a number of thousands of digits
        data = re.split(r"[\s,]+", text.strip())
    if isinstance(data, dict):
        data = next((data[key] for key in ID_KEYS if isinstance(data.get(key), list)), None)
    if isinstance(data, list) and len(data) == 1 and isinstance(data[0], list):
        data = data[0]  # a batch of one
    try:
        if not isinstance(data, list) or not data or any(isinstance(i, bool | float) for i in data):
            raise ValueError
        return [int(i) for i in data]
    except (TypeError, ValueError):
        raise InputError(
            f"Expected token ids in {path}: a JSON list of integers, an object with one under {', '.join(ID_KEYS)}, or"
            " integers parted by spaces or commas."
        ) from None


def compare_prefix(
    token_ids: torch.Tensor | Sequence[int], other_ids: Sequence[int], target: Target | None = None
) -> PrefixDifference:
    """Compare a dump's tokens with a server's request, token by token from the first.

    Args:
        target: for the tokens' texts; without it they stand as ids in angle brackets.
    """
    ours, theirs = torch.as_tensor(token_ids).tolist(), list(other_ids)
    shared = zip(ours, theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(shared) if a != b), None)
    middle = min(len(ours), len(theirs)) if at is None else at

    def texts(ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(f"<{i}>" if target is None or i < 0 else target.text(i) for i in ids)

    windows = [texts(ids[max(middle - AROUND, 0) : middle + AROUND]) for ids in (ours, theirs)]
    suggests = _suggestion(ours, theirs, at, texts(ours[:at]), windows)
    return PrefixDifference(at, (len(ours), len(theirs)), *windows, suggests)


def _suggestion(
    ours: list[int], theirs: list[int], at: int | None, before: Sequence[str], windows: Sequence[tuple[str, ...]]
) -> str:
    if at is None:
        return "The shorter is the beginning of the longer: the same request."
    for longer, shorter, whose in ((ours, theirs, "the dump"), (theirs, ours, "the server's request")):
        if at == 0 and shorter and len(longer) > 1 and longer[1 : 1 + len(shorter)] == shorter[: len(longer) - 1]:
            return f"Only {whose} begins with a BOS token: one side adds it, or the template adds it twice."
    skip = min(at, AROUND)
    after = ["".join(window[skip:]) for window in windows]
    if _alike(*after):
        return "The texts are the same and the tokens are not: another tokenizer, or other merges at that place."
    if sum("think" in text.casefold() for text in after) == 1:
        return "A thinking tag on one side: the chat template's thinking switch (enable_thinking) differs."
    text = "".join(before).casefold()
    role = max(ROLES, key=text.rfind)
    if role == "system" and role in text:
        return "They part inside the system prompt: another system prompt, or a date that the template writes."
    if any("system" in text.casefold()[:40] for text in after):
        return "Only one side has a system prompt there: the template adds a default one, or the request left it out."
    if role not in text:
        return "They part before any role is named: another chat template, or none."
    return "They part inside the conversation: another request, or a template that formats its turns otherwise."


def _alike(a: str, b: str) -> bool:
    """Whether two windows spell the same text for as long as both go."""
    n = min(len(a), len(b))
    return n >= AROUND and a[:n] == b[:n]
