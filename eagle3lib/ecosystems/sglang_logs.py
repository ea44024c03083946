"""What SGLang says of acceptance: decode lines, gauges, each request's meta_info, and bench_serving's results.

Sources: srt/observability/scheduler_metrics_mixin.py (`report_decode_stats`; earlier in srt/managers/),
srt/managers/tokenizer_manager.py (`_calculate_spec_decoding_metrics`), bench_serving.py. Two definitions of
`accept rate` were printed: accept len / draft tokens, and drafts accepted / (draft tokens - 1); it is read for the
number of draft tokens and never as a rate. The older lines are those of its issue threads.
"""

from __future__ import annotations

import re
from typing import Any

from eagle3lib.ecosystems._logs import COUNT, NUMBER, LogReader, Say, Shape, Window, field, number, numbers, survived_of
from eagle3lib.ecosystems._prometheus import Scrape, gauge

REQUEST = Shape(
    "SGLang", "meta_info", 'JSON with "spec_verify_ct"',
    "of each request: spec_verify_ct rounds; drafts from spec_accept_histogram, or spec_accept_token_num, or"
    " completion_tokens - 1 - spec_verify_ct, for the prefill made one token; last rounds counted",
    "requests", "request",
)  # fmt: skip
DECODE = Shape(
    "SGLang", "decode line", '"Decode batch" with "accept len:"',
    "accept len: tokens that the rounds of about 40 decode steps added / rounds, bonus included, two decimals, last"
    " rounds counted; rounds are not printed, so lines weigh as their running requests",
    "windows",
)  # fmt: skip
GAUGES = Shape(
    "SGLang", "gauges", '"sglang:spec_accept_length"',
    "spec_accept_length as on the last decode line, not rounded, bonus included; no rounds",
    "windows",
)  # fmt: skip
BENCHMARK = Shape(
    "SGLang", "bench_serving", 'JSON with "accept_length" and "output_throughput"',
    "accept_length: the server's own mean since it started, bonus included, prompts before the benchmark counted;"
    " output_throughput holds prefills and waiting",
    "runs",
)  # fmt: skip

_DECODE = re.compile(
    rf"Decode batch(?: \[\d+\])?[.,] #running-req: {COUNT}, .*?accept len: {NUMBER},"
    rf"(?: accept rate: {NUMBER},)?.*?gen throughput \(token/s\): {NUMBER},(?: #queue-req: {COUNT})?"
)
_RANK = re.compile(r"([DPT]P)(\d+)")


class Reader(LogReader):
    """Ranks of one DP group print the same batch: the first rank seen of each is read."""

    shapes = (REQUEST, DECODE, BENCHMARK, GAUGES)
    marks = (b"Decode batch", b"sglang:")
    arguments = (b"server_args=ServerArgs(", b"sglang.launch_server ", b"sglang serve ")

    def __init__(self) -> None:
        self._scrape = Scrape("sglang")
        self._first: dict[str, str] = {}
        #: Draft tokens that every line's two numbers allow, by definition of the rate.
        self._nodes = {(minus, n) for minus in (0, 1) for n in range(2, 66)}
        self._tokens: int | None = None

    def line(self, line: str, say: Say) -> None:
        if "Decode batch" in line:
            self._decode(line, say)
        else:
            self._gauges(self._scrape.take(line), say)

    def finish(self, say: Say) -> None:
        self._gauges(self._scrape.end(), say)
        if len(self._nodes) == 1:
            minus, n = next(iter(self._nodes))
            meaning = "drafts accepted / (draft tokens - 1)" if minus else "accept len / draft tokens"
            say.hint(f"accept rate agrees with {meaning} for {n} draft tokens alone")

    def _decode(self, line: str, say: Say) -> None:
        if line.count("Decode batch") > 1:
            return say.odd("two lines in one")
        found = _DECODE.search(line)
        if not found:
            if "gen throughput" in line and "accept len" not in line:
                return say.hint("decode lines without accept len: the server ran without speculation")
            return say.odd("cut or changed")
        running, length, rate, speed, queued = found.groups()
        running, length = float(running), number(length)
        ranks = dict(_RANK.findall(line[: found.start()]))
        group, rank = ranks.get("DP", ""), f"{ranks.get('PP', '')}/{ranks.get('TP', '')}"
        if len(self._first) < 4096 and self._first.setdefault(group, rank) != rank:
            return say.odd("another rank's copy of a batch")
        if not length >= 1:
            return say.odd("without a number" if length != length else "with an accept len below 1")
        nodes = self._draft_tokens(length, number(rate)) if rate else None
        weight = running or 1.0  # the batch may have emptied before the line was printed
        return say.window(
            DECODE,
            Window(
                weight, (length - 1) * weight, counted=False, half=0.005, nodes=nodes and nodes - 1,
                speed=number(speed), running=running, queued=float(queued) if queued else None,
                source=f"DP{group}" if group else "",
            ),
        )  # fmt: skip

    def _draft_tokens(self, length: float, rate: float) -> int | None:
        """Draft tokens, where one number alone makes every pair of accept len and rate agree."""
        if len(self._nodes) > 1 and rate > 0:
            agreeing = {
                (minus, n)
                for minus, n in self._nodes
                if abs((length - minus) / (n - minus) - rate) <= 0.0051 + 0.0051 / (n - minus)
            }
            self._nodes = agreeing or self._nodes
            tokens = {n for _, n in self._nodes}
            self._tokens = tokens.pop() if len(tokens) == 1 else None
        return self._tokens

    def _gauges(self, scrape: dict[str, dict[tuple[str, int], float]], say: Say) -> None:
        for source, values in scrape.items():
            length = gauge(values, "spec_accept_length")
            if length is None:
                continue
            if not length >= 1:
                say.odd("a gauge of a server that has not decoded yet")
                continue
            running = gauge(values, "num_running_reqs")
            window = Window(
                running or 1.0, (length - 1) * (running or 1.0), counted=False, speed=gauge(values, "gen_throughput"),
                running=running, queued=gauge(values, "num_queue_reqs"), source=source,
            )  # fmt: skip
            say.window(GAUGES, window)

    def record(self, record: dict[str, Any], say: Say) -> bool:
        meta = record.get("meta_info", record)
        if isinstance(meta, dict) and "spec_verify_ct" in meta:
            window = _request(meta)
            say.window(REQUEST, window) if window else say.odd("a request without a round")
            return True
        length, speed = field(record, "accept_length"), field(record, "output_throughput")
        if "accept_length" not in record or "output_throughput" not in record:
            return False
        if length is None or length < 1:
            say.odd("a run without speculation")
        else:
            running = field(record, "concurrency")
            window = Window(1.0, length - 1, counted=False, speed=speed, running=running)
            say.window(BENCHMARK, window)
        return True


def _request(meta: dict[str, Any]) -> Window | None:
    """A request's rounds."""
    rounds = field(meta, "spec_verify_ct")
    if not rounds or rounds < 0:
        return None
    histogram = numbers(meta.get("spec_accept_histogram"))
    survived = survived_of(histogram)
    completion, told = field(meta, "completion_tokens"), field(meta, "spec_accept_token_num")
    if survived and sum(histogram) == rounds:
        accepted = sum(survived)
    elif told is not None:
        accepted, survived = told, ()
    elif completion is not None:
        accepted, survived = completion - 1 - rounds, ()
    else:
        return None
    latency = field(meta, "e2e_latency")
    drafted = field(meta, "spec_draft_token_num")
    return Window(
        rounds, max(accepted, 0.0), drafted=drafted, survived=survived,
        nodes=round(drafted / rounds) if drafted else None,
        speed=completion / latency if completion and latency else None,
    )  # fmt: skip


LOGS = Reader
