"""What a system's log lines, metrics and JSON say about acceptance, reduced to counts of rounds and accepted drafts.

A reader turns each line into a `Window` by the definition of its `Shape`. Windows of one shape add up; windows of
two shapes never do, for they may tell of the same rounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

#: A number as a log prints it. A reader that wants one that is followed by something says so: a cut line ends anywhere.
NUMBER = r"(-?\d{1,15}(?:\.\d+)?(?:[eE][-+]?\d{1,3})?|[Nn]a[Nn]|-?inf|N/A)"
COUNT = r"(\d{1,15})"
#: Deeper drafts than any engine's.
LARGEST_STEPS = 256


@dataclass(frozen=True, eq=False)
class Shape:
    """One kind of line, metric or record. A reader has one object for each: every line looks its sums up by it.

    Attributes:
        system: who writes it.
        name: the words by which it is known.
        looks: how it begins or what it holds, for a message that names what was looked for.
        definition: how its numbers count.
        over: what one of them is about; "totals" count from the server's start.
        speed: whose tokens per second it tells: the whole server's, or one request's.
    """

    system: str
    name: str
    looks: str
    definition: str
    over: Literal["windows", "requests", "totals", "runs"]
    speed: Literal["server", "request"] = "server"


class Window(NamedTuple):
    """What one line or record says; a tuple, for a log has a million.

    Attributes:
        rounds: verifications of a draft; where `counted` is false a number in proportion to them.
        accepted: drafts that they accepted, the bonus token left out.
        counted: whether both are counts, not made from a printed length.
        half: half a unit of the last digit of the printed length, where it was printed.
        drafted: drafts that the rounds had by the server's own count.
        survived: rounds that accepted at least k drafts, k = 1 .. K; () where the line does not tell.
        nodes: drafts that a round can have at most, as the line shows; K in a chain.
        speed: tokens per second.
        running, queued: requests.
        source: whose rounds they are, where a log holds several engines'.
    """

    rounds: float
    accepted: float
    counted: bool = True
    half: float = 0.0
    drafted: float | None = None
    survived: tuple[float, ...] = ()
    nodes: int | None = None
    speed: float | None = None
    running: float | None = None
    queued: float | None = None
    source: str = ""

    @property
    def length(self) -> float:
        """Tokens a round, bonus included."""
        return 1 + self.accepted / self.rounds

    def since(self, then: Window) -> Window:
        """What was counted after earlier totals of the same source."""
        longest = max(len(self.survived), len(then.survived))
        padded = [(*w.survived, *[0.0] * (longest - len(w.survived))) for w in (self, then)]
        drafted = None if self.drafted is None or then.drafted is None else self.drafted - then.drafted
        return self._replace(
            rounds=self.rounds - then.rounds,
            accepted=self.accepted - then.accepted,
            drafted=drafted,
            survived=tuple(a - b for a, b in zip(*padded, strict=True)),
        )

    @property
    def sound(self) -> bool:
        """Whether the numbers can be counts of rounds: finite, not negative, and survival falling."""
        if not (0 <= self.rounds < math.inf and 0 <= self.accepted < math.inf):
            return False
        if not (self.drafted is None or 0 <= self.drafted < math.inf) or not (self.speed is None or self.speed >= 0):
            return False
        most = self.rounds
        for count in self.survived:
            if not 0 <= count <= most:
                return False
            most = count
        if len(self.survived) > LARGEST_STEPS:
            return False
        return self.nodes is None or self.accepted <= self.rounds * (self.nodes + 2 * self.half) + 1e-6


class Say(Protocol):
    """Where a reader puts what it read."""

    def window(self, shape: Shape, window: Window) -> None:
        """One line's numbers; of a shape over "totals", the totals so far."""

    def odd(self, reason: str) -> None:
        """A line that could not be used."""

    def hint(self, text: str) -> None:
        """Something that explains why a file tells nothing."""


class LogReader:
    """One system's lines and records. Made anew for every file: it may remember the line before.

    Attributes:
        shapes: those it reads, the most telling first.
        marks: what its lines contain, one of these each.
        arguments: what the arguments that a server was started with begin with.
    """

    shapes: ClassVar[tuple[Shape, ...]] = ()
    marks: ClassVar[tuple[bytes, ...]] = ()
    arguments: ClassVar[tuple[bytes, ...]] = ()

    def line(self, line: str, say: Say) -> None:
        """One line that holds a mark."""

    def record(self, record: dict[str, Any], say: Say) -> bool:
        """One JSON object; whether it is of this system."""
        return False

    def finish(self, say: Say) -> None:
        """The file has ended."""


def number(text: str) -> float:
    """A printed number; NaN for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def field(record: dict[str, Any], name: str) -> float | None:
    """A number of a record, None where it has none."""
    value = record.get(name)
    return float(value) if _is_number(value) else None


def numbers(values: object) -> tuple[float, ...]:
    """A record's list of numbers; () where it is none."""
    if not isinstance(values, list) or len(values) > LARGEST_STEPS + 1:
        return ()
    return tuple(map(float, values)) if all(map(_is_number, values)) else ()


def _is_number(value: object) -> bool:
    """Whether JSON's value is a number of a size that counts have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def printed_rates(text: str) -> tuple[float, ...]:
    """A list such as "0.805, 0.632, 0.483"; () where it is no list of shares."""
    found = tuple(number(part) for part in re.split(r"[,\s]+", text.strip()) if part)
    return found if len(found) <= LARGEST_STEPS and all(0 <= rate <= 1 for rate in found) else ()


def survived_of(histogram: Sequence[float]) -> tuple[float, ...]:
    """Rounds that accepted at least k drafts, k = 1 .., of rounds by accepted drafts."""
    return tuple(sum(histogram[k:]) for k in range(1, len(histogram)))


def rounds_that_print(accepted: int, rates: Sequence[float], drafted: int | None = None) -> tuple[int, ...] | None:
    """Rounds n and counts s_1 .. s_K that print as `rates`, s_k / n to three decimals, with Σ s_k = `accepted`.

    Full drafts are tried first, n = drafted / K; otherwise the fewest rounds that print so. None where no count does.
    """
    total = sum(rates)
    if not rates:
        return None
    tried: list[int] = [drafted // len(rates)] if drafted and drafted % len(rates) == 0 else []
    if total > 0:
        slack = 0.0005 * len(rates) * 1.01
        low, high = accepted / (total + slack), accepted / max(total - slack, 1e-9)
        nearest = round(accepted / total)
        # Three decimals cannot tell many rounds apart; the nearest is as good as any then.
        tried += range(max(1, math.ceil(low)), math.floor(high) + 1) if high - low < 200 else [nearest]
    for n in tried:
        counts = [round(rate * n) for rate in rates]
        prints = all(abs(c / n - rate) <= 0.00051 for c, rate in zip(counts, rates, strict=True)) if n else False
        # Each count may be off by the rounding of its rate, which is below half a round where n is below a thousand.
        if prints and abs(sum(counts) - accepted) <= 0.0005 * n * len(rates) + (0.5 if n >= 1000 else 0):
            return (n, *counts)
    return None
