"""What vLLM says of acceptance: lines every ten seconds, counters, and `vllm bench serve`'s results.

Sources: v1/spec_decode/metrics.py (`SpecDecodingLogging`, `SpecDecodingProm`), v1/metrics/loggers.py,
engine/metrics.py and spec_decode/metrics.py of V0, benchmarks/serve.py.
"""

from __future__ import annotations

import re
from typing import Any

from eagle3lib.ecosystems._logs import (
    COUNT,
    NUMBER,
    LogReader,
    Say,
    Shape,
    Window,
    field,
    number,
    numbers,
    printed_rates,
    rounds_that_print,
)  # fmt: skip
from eagle3lib.ecosystems._prometheus import Scrape, counters

COUNTERS = Shape(
    "vLLM", "counters", '"vllm:spec_decode_num_drafts_total"',
    "rounds, drafted and accepted drafts, and rounds that accepted position k, counted since the server started",
    "totals",
)  # fmt: skip
LINE = Shape(
    "vLLM", "SpecDecoding line", '"SpecDecoding metrics:"',
    "of ten seconds: accepted and drafted drafts; mean acceptance length 1 + accepted / rounds, bonus included; the"
    " rate of position k is the share of rounds that accepted it (survival). Rounds are the count that prints these",
    "windows",
)  # fmt: skip
BENCHMARK = Shape(
    "vLLM", "bench serve", 'JSON with "spec_decode_num_drafts"',
    "differences of the server's counters over the benchmark; output_throughput holds prefills and waiting",
    "runs",
)  # fmt: skip
OLD = Shape(
    "vLLM", "Speculative line (V0)", '"Speculative metrics:"',
    "since the server started: rounds are draft tokens / K, length emitted tokens / rounds, bonus included; its"
    " accepted tokens, which count drafts after a wrong one too, are not used",
    "totals",
)  # fmt: skip

_LENGTH = re.compile(rf"Mean acceptance length: {NUMBER},")
_COUNTS = re.compile(rf"Accepted: {COUNT} tokens, Drafted: {COUNT} tokens")
_RATES = re.compile(r"Per-position acceptance rate: ((?:[\d.]+, )*\d\.\d{3})(?!\d)")
_OLD = re.compile(
    rf"Number of speculative tokens: {COUNT}, Number of accepted tokens: {COUNT}, "
    rf"Number of draft tokens(?: tokens)?: {COUNT}, Number of emitted tokens(?: tokens)?: {COUNT}\."
)
_ENGINE = re.compile(
    rf"Avg prompt throughput: .*?Avg generation throughput: {NUMBER} tokens/s, "
    rf"Running: {COUNT} reqs,.*?(?:Waiting|Pending): {COUNT} reqs"
)


class Reader(LogReader):
    """The line of an engine's speed and requests comes just before its SpecDecoding line."""

    shapes = (COUNTERS, LINE, BENCHMARK, OLD)
    marks = (
        b"SpecDecoding metrics:", b"Speculative metrics:", b"Avg generation throughput:", b"vllm:spec_decode_num_",
        b"vllm:num_requests_",
    )  # fmt: skip
    arguments = (b"non-default args: ", b"speculative_config=SpeculativeConfig(", b"vllm serve ")

    def __init__(self) -> None:
        self._scrape = Scrape("vllm")
        self._load: dict[str, float | None] = {}

    def line(self, line: str, say: Say) -> None:
        if "SpecDecoding metrics:" in line:
            self._window(line, say)
        elif "Speculative metrics:" in line:
            self._old(line, say)
        elif found := _ENGINE.search(line):
            speed = number(found[1])
            self._load = {"speed": speed, "running": float(found[2]), "queued": float(found[3])}
        elif "vllm:" in line:
            self._counters(self._scrape.take(line), say)

    def finish(self, say: Say) -> None:
        self._counters(self._scrape.end(), say)

    def _counters(self, scrape: dict[str, dict[tuple[str, int], float]], say: Say) -> None:
        counters(COUNTERS, scrape, say, running="num_requests_running", queued="num_requests_waiting")

    def _window(self, line: str, say: Say) -> None:
        load, self._load = self._load, {}
        if line.count("SpecDecoding metrics:") > 1:
            return say.odd("two lines in one")
        length, counted, rates = _LENGTH.search(line), _COUNTS.search(line), _RATES.search(line)
        if not length or not counted:
            return say.odd("cut or changed")
        value, accepted, drafted = number(length[1]), int(counted[1]), int(counted[2])
        if not drafted:
            return say.odd("a window without a draft")
        if not value >= 1:
            return say.odd("without a number")
        by_position = printed_rates(rates[1]) if rates else ()
        counts = rounds_that_print(accepted, by_position, drafted)
        if counts and abs(1 + accepted / counts[0] - value) <= 0.0051:
            return say.window(
                LINE,
                Window(counts[0], accepted, drafted=drafted, survived=counts[1:], nodes=len(by_position), **load),
            )
        if value > 1 and not by_position:  # rounds from the length alone, whose last digit leaves them open
            rounds = accepted / (value - 1)
            window = Window(rounds, accepted, counted=False, half=0.005, drafted=drafted, **load)
            return say.window(LINE, window)
        return say.odd("numbers that do not agree")

    def _old(self, line: str, say: Say) -> None:
        found = _OLD.search(line)
        if not found:
            return say.odd("cut or changed")
        steps, _, drafted, emitted = map(int, found.groups())
        if not steps or not drafted:
            return say.odd("a window without a draft")
        rounds = drafted / steps
        window = Window(rounds, max(emitted - rounds, 0.0), drafted=drafted, nodes=steps, **self._load)
        return say.window(OLD, window)

    def record(self, record: dict[str, Any], say: Say) -> bool:
        if "spec_decode_num_drafts" not in record:
            return False
        rounds, accepted = field(record, "spec_decode_num_drafts"), field(record, "spec_decode_accepted_tokens")
        rates = numbers(record.get("spec_decode_per_position_acceptance_rates"))
        if not rounds or accepted is None:
            say.odd("a run without a draft")
            return True
        window = Window(
            rounds, accepted, drafted=field(record, "spec_decode_draft_tokens"),
            survived=tuple(float(round(rate * rounds)) for rate in rates), nodes=len(rates) or None,
            speed=field(record, "output_throughput"), running=field(record, "max_concurrency"),
        )  # fmt: skip
        say.window(BENCHMARK, window)
        return True


LOGS = Reader
