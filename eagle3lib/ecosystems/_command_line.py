"""Arguments of a command as a shell splits it, and of a call as Python prints it.

A command is read as argparse does: `--name value`, `--name=value`, the last of repeated ones, underscores for
dashes. What looks like NAME=VALUE and is no argument's value is the environment, wherever it stands: before the
program, after `env`, `export` or `docker run -e`.
"""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from eagle3lib.errors import InputError

#: Characters of a text that are read, and of a value that Python printed. The longest line of settings that an
#: engine prints is about 20 000.
LONGEST_TEXT, LONGEST_VALUE = 2**17, 2**14

#: Arguments that put a variable into a container's environment, one each.
_ENVIRONMENT = ("-e", "--env")
_ASSIGNMENT = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"-\d*\.?\d+(e-?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class CommandLine:
    """A command in pieces.

    Attributes:
        arguments: by name with its dashes, in the order given: the values of each time that it stands there.
        environment: by name.
        words: what is neither.
    """

    arguments: dict[str, list[tuple[str, ...]]]
    environment: dict[str, str]
    words: tuple[str, ...]


def expect_text(text: str, what: str) -> str:
    """The text without surrounding space.

    Raises:
        InputError: if it is empty or too long for what it should be.
    """
    if len(text) > LONGEST_TEXT:
        raise InputError(
            f"Expected {what} of at most {LONGEST_TEXT:,} characters in served.launch, found {len(text):,}; give the"
            " command or the one line of settings, not the whole log."
        )
    if not text.strip():
        raise InputError(f"Expected {what} in served.launch, found nothing; give the text or take the field out.")
    return text.strip()


def read_command_line(text: str, switches: Collection[str], equals: bool = True) -> CommandLine:
    """Split a command.

    Args:
        switches: arguments that take no value.
        equals: whether `--name=value` is two, or else one name that nobody has.

    Raises:
        InputError: if a quotation is not closed.
    """
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text)
    lines = [line for line in joined.splitlines() if not line.lstrip().startswith("#")]
    try:
        split = shlex.shlex("\n".join(lines), posix=True, punctuation_chars=";&|")
        split.whitespace_split, split.commenters = True, ""
        tokens = list(split)
    except ValueError as error:
        raise InputError(
            f"served.launch cannot be split as a shell would: {str(error).lower()}; close the quotation or the escape"
            f" in {_short(text)}."
        ) from None
    arguments: dict[str, list[list[str]]] = {}
    environment: dict[str, str] = {}
    words: list[str] = []
    name = ""
    values: list[str] | None = None  # of the argument being read
    for token in tokens:
        if not token.strip(";&|"):
            values = None  # another command begins
        elif _is_name(token):
            name, joint, value = token.partition("=") if equals else (token, "", "")
            name = name.replace("_", "-")
            values = [value] if joint else []
            arguments.setdefault(name, []).append(values)
            if joint or name in switches:
                values = None
        elif values is not None:
            values.append(token)
            if name in _ENVIRONMENT:
                values = None
        elif assignment := _ASSIGNMENT.fullmatch(token):
            environment[assignment[1]] = assignment[2]
        else:
            words.append(token)
    for flag in _ENVIRONMENT:
        for times in arguments.get(flag, []):
            environment |= {m[1]: m[2] for value in times if (m := _ASSIGNMENT.fullmatch(value))}
    return CommandLine({n: [tuple(v) for v in times] for n, times in arguments.items()}, environment, tuple(words))


def _is_name(token: str) -> bool:
    return token.startswith("-") and len(token) > 1 and token != "--" and not _NUMBER.fullmatch(token)


def printed_arguments(text: str, between: Literal["=", ":"], closed: bool = True) -> dict[str, Any] | None:
    """What Python prints inside a call's brackets, as `a=1, b='x', c=C(d=2))`, or a dictionary's, as `'a': 1}`.

    Plain values as Python's, others as printed; None if a bracket or a quotation is never closed.

    Args:
        closed: whether the text must hold the bracket that ends it, or else goes on to its end.
    """
    parts, depth, quote, begin, at = [], 0, "", 0, 0
    while at < len(text):
        c = text[at]
        if quote:
            at += c == "\\"
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth < 0:
                break
        elif c == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    if quote or depth > 0 or (closed and depth == 0):
        return None
    parts.append(text[begin:at])
    pairs = (part.partition(between) for part in parts)
    return {name.strip().strip("'\""): plain(value.strip()) for name, found, value in pairs if found}


def plain(value: str) -> Any:
    """A printed value as Python's, or itself where it is no literal."""
    if len(value) > LONGEST_VALUE:
        return value
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that mean nothing
            return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= 60 else shown[:57] + "...")
