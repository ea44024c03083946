"""What SpecForge's benchmarks say of acceptance on an SGLang server.

Sources: specforge/benchmarks/sglang.py (`BenchmarkResult`) and benchmarks/bench_eagle3.py with benchmarker/utils.py.
"""

from __future__ import annotations

from typing import Any

from eagle3lib.ecosystems._logs import LogReader, Say, Shape, Window, field

POOLED = Shape(
    "SpecForge", "benchmark", 'JSON with "spec_verify_count"',
    "output tokens less one a prompt, which its prefill made, over spec_verify_count rounds; average_acceptance_length,"
    " a mean over requests that counts that token, is not used",
    "runs",
)  # fmt: skip
BENCH_EAGLE3 = Shape(
    "SpecForge", "bench_eagle3", 'JSON with "accept_length" and "num_questions" under "metrics"',
    "accept_length: completion tokens / spec_verify_ct pooled over a run, bonus included. Tokens are output_throughput"
    " x latency; one a question, which its prefill made, is taken off again",
    "runs",
)  # fmt: skip


class Reader(LogReader):
    """One window a benchmark and setting."""

    shapes = (POOLED, BENCH_EAGLE3)

    def record(self, record: dict[str, Any], say: Say) -> bool:
        if "spec_verify_count" in record and "output_tokens" in record:
            return self._pooled(record, say)
        runs = [run for value in record.values() if isinstance(value, list) for run in value if _is_run(run)]
        for run in runs:
            for metrics in filter(_is_metrics, run["metrics"]):
                length, speed = field(metrics, "accept_length"), field(metrics, "output_throughput")
                tokens = round((speed or 0.0) * (field(metrics, "latency") or 0.0))
                questions = field(metrics, "num_questions") or 0.0
                if length is None or length <= 1 or tokens <= questions:
                    say.odd("a run without speculation")
                    continue
                rounds, nodes = round(tokens / length), field(run, "num_draft_tokens")
                window = Window(
                    rounds, max(tokens - questions - rounds, 0.0), speed=speed,
                    nodes=int(nodes) - 1 if nodes and nodes > 1 else None, running=field(run, "batch_size"),
                )  # fmt: skip
                say.window(BENCH_EAGLE3, window)
        return bool(runs)

    def _pooled(self, record: dict[str, Any], say: Say) -> bool:
        rounds, tokens = field(record, "spec_verify_count"), field(record, "output_tokens")
        samples, speed = field(record, "samples") or 0.0, field(record, "throughput_tokens_per_second")
        if not rounds or tokens is None or tokens - samples < rounds:
            say.odd("a run without speculation")
        else:
            say.window(POOLED, Window(rounds, tokens - samples - rounds, speed=speed))
        return True


def _is_run(run: object) -> bool:
    return isinstance(run, dict) and isinstance(run.get("metrics"), list) and any(map(_is_metrics, run["metrics"]))


def _is_metrics(metrics: object) -> bool:
    return isinstance(metrics, dict) and "accept_length" in metrics and "num_questions" in metrics


LOGS = Reader
