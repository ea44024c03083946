"""How a running server is asked for a greedy response to a prompt of token ids, over its own HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Reply = dict[str, Any]


@dataclass(frozen=True)
class Api:
    """One engine's requests.

    Attributes:
        system: whose log lines and metrics the replies are read by.
        path: where prompts are posted.
        body: the request for a prompt, so many new tokens at most, and the model's name.
        tokens: the generated token ids of a reply; None where it has none.
        generated: how many tokens a reply says that it generated.
        names_model: whether a request names the model, which /v1/models tells.
    """

    system: str
    path: str
    body: Callable[[list[int], int, str], Reply]
    tokens: Callable[[Reply], Any]
    generated: Callable[[Reply], Any]
    names_model: bool = False


def inner(reply: Any, *keys: str | int) -> Any:
    """What stands at a path of keys and places; None where there is nothing."""
    for key in keys:
        try:
            reply = reply[key]
        except (KeyError, IndexError, TypeError):
            return None
    return reply
