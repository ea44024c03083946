"""What TensorRT-LLM says of acceptance: specDecodingStats of its `/metrics`; its iteration lines hold none.

Source: cpp/include/tensorrt_llm/executor/types.h (`SpecDecodingStats`).
"""

from __future__ import annotations

from typing import Any

from eagle3lib.ecosystems._logs import LogReader, Say, Shape, Window, field

ITERATION = Shape(
    "TensorRT-LLM", "specDecodingStats", 'JSON with "specDecodingStats"',
    "of one iteration: rounds are numRequestsWithDraftTokens; acceptanceLength, which is not used, is 1 + accepted /"
    " rounds. numDraftTokens may count slots that were never drafted",
    "windows",
)  # fmt: skip


class Reader(LogReader):
    """One record an iteration."""

    shapes = (ITERATION,)
    marks = (b"num_scheduled_requests = ",)

    def line(self, line: str, say: Say) -> None:
        say.hint("TensorRT-LLM's iteration lines hold no acceptance; save what its /metrics answers")

    def record(self, record: dict[str, Any], say: Say) -> bool:
        stats = record.get("specDecodingStats")
        if not isinstance(stats, dict):
            return False
        rounds, accepted = field(stats, "numRequestsWithDraftTokens"), field(stats, "numAcceptedTokens")
        if not rounds or accepted is None:
            say.odd("an iteration without a draft")
            return True
        latency = field(record, "iterLatencyMS")
        window = Window(
            rounds, accepted, drafted=field(stats, "numDraftTokens"),
            speed=(rounds + accepted) / latency * 1000 if latency else None,
            running=field(record, "numActiveRequests"), queued=field(record, "numQueuedRequests"),
        )  # fmt: skip
        say.window(ITERATION, window)
        return True


LOGS = Reader
