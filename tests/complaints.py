"""How a user's mistake must be answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eagle3lib.errors import InputError

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


def complaint(action: Callable[[], object], *parts: str) -> str:
    """The message of the InputError that `action` raises: it holds every part, and is at most two sentences."""
    with pytest.raises(InputError) as caught:
        action()
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    assert "\n" not in message
    assert len(message) < 600
    return message
