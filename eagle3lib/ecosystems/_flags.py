"""What every engine's reading of its own arguments shares; each engine's names and rules lie beside it."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from eagle3lib.ecosystems._command_line import CommandLine, expect_text
from eagle3lib.errors import InputError
from eagle3lib.speculation import Hazard, Kind, Origin, Speculation

#: The deepest draft and the largest tree that are believed; engines are given tens.
MOST = 1024
#: Tokens of a context that are believed.
LONGEST_CONTEXT = 2**31
#: Characters of a single value, such as a path, and of an argument as pages repeat it.
LONGEST_WORD, LONGEST_SAID = 1024, 160


class Settings:
    """The fields of a `Speculation` as a reader finds them, each with its origin."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.values: dict[str, Any] = {"steps": None, "topk": None, "draft_tokens": None}
        self.origins: dict[str, Origin] = {}
        self.varying: list[str] = []
        self.hazards: list[Hazard] = []
        self.others: list[str] = []

    def put(self, name: str, value: Any, kind: Kind, said: str = "") -> None:
        """Give a field its value, or the reason why it has none.

        Raises:
            InputError: if it is text that is too long for one value, or on several lines.
        """
        if isinstance(value, str) and (len(value) > LONGEST_WORD or not value.isprintable()):
            raise InputError(
                f"Expected a value of at most {LONGEST_WORD:,} printable characters for {name} in served.launch, found"
                f" {len(value):,} characters: {value[:40]!r}."
            )
        self.values[name] = value
        self.origins[name] = Origin("unknown" if value is None else kind, short(said))

    def sampling(self, said: Mapping[str, Any], kind: Kind, argument: str) -> None:
        """Temperature, top-k and top-p where they are given; a top-k below 1 keeps all.

        Raises:
            InputError: if one of them cannot be.
        """
        if "temperature" in said:
            self.put("temperature", number(said["temperature"], argument), kind, argument)
        if "top_k" in said:
            top_k = whole(said["top_k"], argument, -1, LONGEST_CONTEXT)
            self.put("top_k", top_k if top_k is not None and top_k > 0 else None, kind, argument)
        if "top_p" in said:
            self.put("top_p", number(said["top_p"], argument, high=1), kind, argument)

    def vary(self, *why: str) -> None:
        """Add reasons why rounds draft fewer steps."""
        self.varying += map(short, why)

    def nothing_drafted(self, said: str) -> None:
        """The shape of a server that does not speculate."""
        for name, value in {"steps": 0, "topk": 1, "draft_tokens": 1}.items():
            self.put(name, value, "default", said)

    def chain(self, said: str) -> None:
        """A chain of the steps that were found: one node a step, and the root."""
        steps = self.values["steps"]
        self.put("topk", 1, "forced", said)
        self.put("draft_tokens", None if steps is None else steps + 1, "forced", said)

    def speculation(self) -> Speculation:
        """The record."""
        lists = {name: tuple(getattr(self, name)) for name in ("varying", "hazards", "others")}
        return Speculation(**self.values, **lists, engine=self.engine, origins=self.origins)


class Flags(ABC):
    """How one engine is told to speculate.

    Attributes:
        takes: the texts that it reads, for messages.
        mark: what only a text of this engine holds.
        lines: how each field is written, for remedies.
    """

    takes: str
    mark: re.Pattern[str]
    lines: Mapping[str, str]

    def read(self, engine: str, text: str, architecture: str | None, version: str | None) -> Speculation:
        """The record of a text.

        Args:
            architecture: the target's Hugging Face name, by which some engines choose.
            version: the release, where the case states it; what the text says itself wins.

        Raises:
            InputError: if the text is not what this engine takes, or a value cannot be.
        """
        settings = Settings(engine)
        self.fill(settings, expect_text(text, self.takes), architecture, version)
        return settings.speculation()

    @abstractmethod
    def fill(self, settings: Settings, text: str, architecture: str | None, version: str | None) -> None:
        """Put what the text says."""

    def line(self, name: str, value: object) -> str:
        """The argument that sets a field; the field's own name where the engine has none for it."""
        return self.lines.get(name, f"{name} = {{}}").format(value)

    def refuse(self, text: str) -> InputError:
        """The complaint about a text of something else."""
        shown = " ".join(text.split())[:60]
        return InputError(
            f"Expected {self.takes} in served.launch, as served.engine says, found {shown!r}...; give the text that"
            " this engine was started with, or name the engine that it belongs to."
        )


def short(said: str) -> str:
    """An argument on one line, cut where it is long."""
    line = " ".join(said.split())
    return line if len(line) <= LONGEST_SAID else line[: LONGEST_SAID - 3] + "..."


def given(
    line: CommandLine, names: Mapping[str, str], switches: Collection[str]
) -> tuple[dict[str, tuple[str | None, str]], list[str]]:
    """Values by field, each with the argument as it stands there, and the names of the other arguments.

    Args:
        names: the field of each argument. One that is not among them stands for the only one that it begins, as
            argparse has it.
        switches: arguments that need no value.

    Raises:
        InputError: if an argument's value is missing.
    """
    found: dict[str, tuple[str | None, str]] = {}
    others = []
    for name, times in line.arguments.items():
        begun = {names[known] for known in names if len(name) > 8 and known.startswith(name)}
        field = names.get(name) or (begun.pop() if len(begun) == 1 else None)
        if field is None:
            others.append(name)
            continue
        value = times[-1][0] if times[-1] else None
        if value is None and name not in switches:
            raise InputError(f"Expected a value after {name} in served.launch, found none; give it or take it out.")
        repeated = f" (the last of {len(times)})" if len(times) > 1 else ""
        found[field] = (value, f"{name} {value or ''}".strip() + repeated)
    return found, others


def whole(value: Any, said: str, low: int = 1, high: int = MOST) -> int | None:
    """A whole number within bounds; None for None.

    Raises:
        InputError: if it is none, or out of bounds.
    """
    if value is None:
        return None
    text = str(value).strip()
    # int() of a long string takes time that grows with its square.
    if isinstance(value, bool) or len(text) > 20 or not re.fullmatch(r"[+-]?\d+", text) or not low <= int(text) <= high:
        raise InputError(f"Expected a whole number from {low} to {high} in served.launch, found {said[:80]!r}.")
    return int(text)


def number(value: Any, said: str, low: float = 0.0, high: float = math.inf) -> float | None:
    """A number within bounds; None for None.

    Raises:
        InputError: as `whole`.
    """
    if value is None:
        return None
    try:
        found = float(str(value)[:40])
    except ValueError:
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found) or not low <= found <= high:
        upper = "" if high == math.inf else f" and at most {high:g}"
        raise InputError(f"Expected a number of at least {low:g}{upper} in served.launch, found {said[:80]!r}.")
    return found


def mapping(value: Any, said: str) -> dict[str, Any]:
    """An object that is given as JSON, or as Python prints one.

    Raises:
        InputError: if it is none.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{said[:80]!r} in served.launch is not JSON: {str(error)[:80]}; quote it whole."
            ) from None
    if not isinstance(value, dict):
        raise InputError(f"Expected a JSON object in served.launch, found {said[:80]!r}.")
    return value


def tree_of_paths(value: Any, said: str) -> tuple[int, int, int]:
    """Steps, topk and drafted nodes of a fixed tree, given as the paths to its nodes: [[0], [0, 0], [1]].

    Raises:
        InputError: if it is none.
    """
    paths = value if isinstance(value, (list, tuple)) else None
    if not paths or len(paths) > MOST or not all(isinstance(p, (list, tuple)) and 0 < len(p) <= MOST for p in paths):
        raise InputError(
            f"Expected a list of paths, each a list of child numbers, in served.launch, found {said[:80]!r}."
        )
    numbers = [whole(child, said, 0) for path in paths for child in path]
    return max(map(len, paths)), 1 + max(numbers), len({tuple(path) for path in paths})
