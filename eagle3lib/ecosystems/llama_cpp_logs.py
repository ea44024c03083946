"""What llama.cpp says of acceptance: every round (LLAMA_TRACE=1), each request, running statistics, counters, timings.

Sources: tools/server/server-context.cpp (`print_timings` and the verification), server-common.cpp
(`server_slot_stats::to_json`), server-task.cpp (metrics), common/speculative.cpp (`common_speculative_print_stats`).
Drafts are shortened near the token limit and by `--spec-draft-p-min`, so accepted / generated is no rate to compare.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from eagle3lib.ecosystems._logs import (
    COUNT,
    LARGEST_STEPS,
    NUMBER,
    LogReader,
    Say,
    Shape,
    Window,
    field,
    number,
    printed_rates,
    rounds_that_print,
    survived_of,
)  # fmt: skip
from eagle3lib.ecosystems._prometheus import Scrape, counters

ROUND = Shape(
    "llama.cpp", "round line", '"accepted  2/ 4 draft tokens"',
    "each round's accepted and drafted drafts, gathered by request; rounds without a draft print none, last"
    " rounds counted",
    "requests", "request",
)  # fmt: skip
REQUEST = Shape(
    "llama.cpp", "draft acceptance", '"draft acceptance ="',
    "of each request: accepted drafts, mean length 1 + accepted / rounds with a draft, bonus included; the rate of"
    " position k is the share of rounds that accepted it (survival). Rounds are the count that prints all three",
    "requests", "request",
)  # fmt: skip
COUNTERS = Shape(
    "llama.cpp", "counters", '"llamacpp:spec_decode_num_drafts_total"',
    "rounds, drafted and accepted drafts, and rounds that accepted position k, counted since the server started",
    "totals",
)  # fmt: skip
STATISTICS = Shape(
    "llama.cpp", "statistics", '"statistics" with "#acc tokens"',
    "since the server started: rounds are the third of #calls(b,g,a), and #acc tokens the drafts they accepted",
    "totals",
)  # fmt: skip
TIMINGS = Shape(
    "llama.cpp", "timings", 'JSON with "draft_n"',
    "of each request: draft_n_accepted of draft_n; rounds are predicted_n - 1 - draft_n_accepted, those without a draft"
    " among them, for the prefill made one token",
    "requests", "request",
)  # fmt: skip
OLD = Shape(
    "llama.cpp", "draft acceptance rate", '"draft acceptance rate ="',
    "of each request: accepted of generated drafts; rounds are the tokens of its eval time line - 1 - accepted, those"
    " without a draft among them",
    "requests", "request",
)  # fmt: skip

_TASK = re.compile(r"slot .*?\| task (-?\d+) \|")
_ROUND = re.compile(r"accepted\s+(\d{1,4})/\s*(\d{1,4}) draft tokens(, new)?( \(restore checkpoint\))?")
_EVAL = re.compile(rf"(?<!prompt )\beval time =\s*{NUMBER} ms /\s*{COUNT} tokens .*?,\s*{NUMBER} tokens per second\)")
_REQUEST = re.compile(
    rf"draft acceptance =\s*{NUMBER} \(\s*{COUNT} accepted /\s*{COUNT} generated\), "
    rf"(?:mean acceptance length|mean len) =\s*{NUMBER}(?:, acceptance rate per position = \(([^)]*)\))?"
)
_POSITIONS = re.compile(r"acc per pos = \(([^)]*)\)")
_OLD = re.compile(rf"draft acceptance rate =\s*{NUMBER} \(\s*{COUNT} accepted /\s*{COUNT} generated\)")
_STATISTICS = re.compile(
    rf"statistics\s+(\S+): #calls(?:\(b,g,a\) =\s*\d+\s+\d+\s+{COUNT}| =\s*\d+), .*?#gen drafts =\s*{COUNT}, "
    rf"#acc drafts =\s*\d+, #gen tokens =\s*{COUNT}, #acc tokens =\s*{COUNT}(?=,|\s*$)"
    r"(?:, #mean acc len = [\d.]+, #acc rate/pos = \(([^)]*)\))?"
)
#: Requests whose rounds are gathered at once; a server has fewer slots.
_OPEN = 1024


class Reader(LogReader):
    """A request is told by up to four lines: its speed, its acceptance, its positions, and the statistics so far."""

    shapes = (ROUND, REQUEST, COUNTERS, STATISTICS, TIMINGS, OLD)
    marks = (
        b" draft tokens", b" eval time =", b"draft acceptance", b"acc per pos =", b"#acc tokens", b"llamacpp:",
    )  # fmt: skip
    arguments = (b"llama-server -",)

    def __init__(self) -> None:
        self._scrape = Scrape("llamacpp")
        self._rounds: dict[str, Counter[tuple[int, int]]] = {}  # of each request: accepted and drafted
        self._replayed: set[str] = set()
        self._drafters: list[str] = []
        self._speed: tuple[float, int] | None = None  # of the request whose lines are being read
        self._told: tuple[int, int, float] | None = None  # its acceptance, until its positions come or do not

    def line(self, line: str, say: Say) -> None:
        if found := _ROUND.search(line):
            self._round(line, found, say)
        elif found := _POSITIONS.search(line):
            self._request(printed_rates(found[1]), say)
        elif "draft acceptance" in line:
            self._acceptance(line, say)
        elif "#acc tokens" in line:
            self._request((), say)
            self._statistics(line, say)
        elif found := _EVAL.search(line):
            self._request((), say)
            self._speed = number(found[3]), int(found[2])
            self._end(_task(line), self._speed[0], say)
        elif "llamacpp:" in line:
            self._counters(self._scrape.take(line), say)
        elif " eval time =" not in line and "draft tokens" not in line:
            say.odd("cut or changed")

    def finish(self, say: Say) -> None:
        self._request((), say)
        if len(self._drafters) > 1:
            say.hint(f"rounds of {' and '.join(self._drafters[:4])} are added up: not the draft's alone")
        for task in list(self._rounds):
            self._end(task, None, say)
        self._counters(self._scrape.end(), say)

    def _counters(self, scrape: dict[str, dict[tuple[str, int], float]], say: Say) -> None:
        counters(COUNTERS, scrape, say, speed="predicted_tokens_seconds", running="requests_processing",
                 queued="requests_deferred")  # fmt: skip

    def _round(self, line: str, found: re.Match[str], say: Say) -> None:
        accepted, drafted, debug, restored = int(found[1]), int(found[2]), found[3], found[4]
        if debug:
            return None  # the debug level prints the round once more
        if not 0 <= accepted <= drafted <= LARGEST_STEPS or not drafted:
            return say.odd("a round with more accepted than drafted")
        task = _task(line)
        if task in self._replayed:  # a restored round is verified again, with what it accepted as its draft
            self._replayed.discard(task)
            return None
        if restored:
            self._replayed.add(task)
        if task not in self._rounds and len(self._rounds) >= _OPEN:
            self._end(next(iter(self._rounds)), None, say)
        self._rounds.setdefault(task, Counter())[accepted, drafted] += 1
        return None

    def _end(self, task: str, speed: float | None, say: Say) -> None:
        """A request's rounds, all read."""
        self._replayed.discard(task)
        rounds = self._rounds.pop(task, None)
        if not rounds:
            return
        steps = max(drafted for _, drafted in rounds)
        histogram = [0] * (steps + 1)
        for (accepted, _), times in rounds.items():
            histogram[accepted] += times
        survived = survived_of(histogram)
        drafted = sum(d * times for (_, d), times in rounds.items())
        say.window(ROUND, Window(sum(histogram), sum(survived), drafted=drafted, survived=survived, nodes=steps,
                                 speed=speed))  # fmt: skip

    def _acceptance(self, line: str, say: Say) -> None:
        self._request((), say)
        if found := _REQUEST.search(line):
            self._told = int(found[2]), int(found[3]), number(found[4])
            if found[5] is not None:
                self._request(printed_rates(found[5]), say)
        elif found := _OLD.search(line):
            accepted, drafted = int(found[2]), int(found[3])
            speed, tokens = self._speed or (None, 0)
            self._speed = None
            if tokens - 1 <= accepted:
                return say.odd("a request without its eval time line, which counts its tokens")
            say.window(OLD, Window(tokens - 1 - accepted, accepted, drafted=drafted, speed=speed))
        else:
            say.odd("cut or changed")
        return None

    def _request(self, rates: tuple[float, ...], say: Say) -> None:
        """The request that was told, with its positions where they followed."""
        if self._told is None:
            return
        (accepted, drafted, length), self._told = self._told, None
        speed, tokens = self._speed or (None, 0)
        self._speed = None
        counts = rounds_that_print(accepted, rates, drafted)
        if counts and abs(1 + accepted / counts[0] - length) <= 0.0051:
            window = Window(counts[0], accepted, drafted=drafted, survived=counts[1:], nodes=len(rates), speed=speed)
        elif length > 1 and not rates:
            window = Window(accepted / (length - 1), accepted, counted=False, half=0.005, drafted=drafted, speed=speed)
        elif (
            accepted == 0 and tokens > 1 and not rates
        ):  # a round a token after the first, those without a draft among them
            window = Window(tokens - 1, 0, counted=False, drafted=drafted, speed=speed)
        else:
            say.odd("numbers that do not agree")
            return
        say.window(REQUEST, window)

    def _statistics(self, line: str, say: Say) -> None:
        found = _STATISTICS.search(line)
        if not found:
            return say.odd("cut or changed")
        name, rounds, drafts, drafted, accepted, rates = found.groups()
        count = int(rounds or drafts)  # older builds count calls as one number, drafts that came to nothing among them
        shares = printed_rates(rates) if rates else ()
        survived = tuple(float(round(share * count)) for share in shares)
        if name not in self._drafters and len(self._drafters) < _OPEN:
            self._drafters.append(name)
        say.window(STATISTICS, Window(count, int(accepted), drafted=int(drafted), survived=survived, source=name))
        return None

    def record(self, record: dict[str, Any], say: Say) -> bool:
        timings = record.get("timings", record)
        if not isinstance(timings, dict) or "predicted_n" not in timings:
            return False
        accepted, tokens = field(timings, "draft_n_accepted"), field(timings, "predicted_n")
        if accepted is None or tokens is None or tokens - 1 <= accepted:
            say.odd("a request without a draft")
            return True
        window = Window(tokens - 1 - accepted, accepted, drafted=field(timings, "draft_n"),
                        speed=field(timings, "predicted_per_second"))  # fmt: skip
        say.window(TIMINGS, window)
        return True


def _task(line: str) -> str:
    found = _TASK.search(line)
    return found[1] if found else ""


LOGS = Reader
