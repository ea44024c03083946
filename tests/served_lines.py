"""Log lines as servers write them, of rounds drawn with known survival: each function prints what the writer's own
format string prints of the counts that it keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

HEALTHY = (0.71, 0.48, 0.31)


def rounds(n: int, survival: Sequence[float] = HEALTHY, seed: int = 0) -> np.ndarray:
    """[n] accepted drafts of each round."""
    return (np.random.default_rng(seed).random(n)[:, None] < np.array(survival)).sum(1)


def survived(accepted: np.ndarray, steps: int) -> list[int]:
    """[K] rounds that accepted at least k drafts."""
    return [int((accepted >= k).sum()) for k in range(1, steps + 1)]


def windows(n: int, each: int, survival: Sequence[float] = HEALTHY, seed: int = 0) -> list[np.ndarray]:
    """Rounds of n windows."""
    return list(rounds(n * each, survival, seed).reshape(n, each))


def sglang(
    accepted: np.ndarray, version: str = "2026", steps: int = 3, running: int = 4, queued: int = 0, rank: str = "TP0",
    speed: float = 310.25, graph: str = "cuda",
) -> str:  # fmt: skip
    """`report_decode_stats`; in the versions of 2025 the rate was of all draft tokens."""
    length = 1 + accepted.mean()
    head = f"[2026-03-04 10:11:12 {rank}] Decode batch"
    tail = f"gen throughput (token/s): {speed:.2f}, #queue-req: {queued}"
    of_tokens, of_drafts = length / (steps + 1), accepted.mean() / steps
    if version == "2025":
        return f"{head}. #running-req: {running}, #token: 4096, token usage: 0.03, accept len: {length:.2f}, {tail}"
    usage = f"#running-req: {running}, #token: 4096, token usage: 0.03, accept len: {length:.2f}, "
    if version == "May 2025":
        return f"{head}. {usage}cuda graph: True, {tail}"
    if version == "October 2025":
        return f"{head}. {usage}accept rate: {of_tokens:.2f}, {graph} graph: True, {tail}, "
    hybrid = "#full token: 4096, full token usage: 0.03, mamba num: 8, mamba usage: 0.10"
    usage = hybrid if version == "hybrid" else "#token: 4096, token usage: 0.03"
    more = (
        "pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, " if "PD" in version else ""
    )
    return (
        f"{head}, #running-req: {running}, {usage}, accept len: {length:.2f}, accept rate: {of_drafts:.2f}, {more}"
        f"{graph} graph: True, {tail}, est. decode TFLOPS/s (per GPU): 1.25, fwd occupancy: 93.10%"
    )


def vllm(accepted: np.ndarray, version: str = "late 2025", steps: int = 3, seconds: float = 10.0) -> str:
    """`SpecDecodingLogging.log`."""
    n, total, drafted = len(accepted), int(accepted.sum()), len(accepted) * steps
    rates = ", ".join(f"{count / n:.3f}" for count in survived(accepted, steps))
    length, rate = 1 + total / n, total / drafted * 100
    counts = f"Accepted: {total} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}"
    if version == "spring 2025":
        return (
            f"INFO 05-02 10:11:12 [metrics.py:82] SpecDecoding metrics: Draft acceptance rate: {rate:.1f}%, "
            f"Mean acceptance length: {length:.2f}, {counts}"
        )
    speeds = f"throughput: {total / seconds:.2f} tokens/s, Drafted throughput: {drafted / seconds:.2f} tokens/s"
    return (
        "(APIServer pid=17) INFO 11-02 10:11:12 [metrics.py:101] SpecDecoding metrics: "
        f"Mean acceptance length: {length:.2f}, Accepted {speeds}, {counts}, Avg Draft acceptance rate: {rate:.1f}%"
    )


def vllm_engine(speed: float = 812.4, running: int = 8, waiting: int = 0) -> str:
    """The line before, of `LoggingStatLogger.log`."""
    return (
        "(APIServer pid=17) INFO 11-02 10:11:12 [loggers.py:248] Engine 000: Avg prompt throughput: 31.0 tokens/s, Avg"
        f" generation throughput: {speed:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache"
        " usage: 3.1%, Prefix cache hit rate: 0.0%"
    )


def vllm_v0(accepted: np.ndarray, steps: int = 3) -> str:
    """`_format_spec_decode_metrics_str`; accepted tokens there hold those after a wrong one."""
    n, emitted = len(accepted), int(accepted.sum()) + len(accepted)
    return (
        f"INFO 02-02 10:11:12 metrics.py:489] Speculative metrics: Draft acceptance rate: 0.611, System efficiency:"
        f" {emitted / (n * (steps + 1)):.3f}, Number of speculative tokens: {steps}, Number of accepted tokens:"
        f" {int(n * steps * 0.611)}, Number of draft tokens: {n * steps}, Number of emitted tokens: {emitted}."
    )


def counters(
    accepted: np.ndarray, prefix: str = "vllm", steps: int = 3, labels: str = 'engine="0",model_name="m"'
) -> str:
    """Prometheus text of `SpecDecodingProm`, or of llama.cpp with no labels."""
    name, inner = f"{prefix}:spec_decode_num_", f"{{{labels}}}" if labels else ""
    rows = [
        f"# HELP {name}drafts_total Number of spec decoding drafts.",
        f"# TYPE {name}drafts_total counter",
        f"{name}drafts_total{inner} {float(len(accepted))}",
        f"{name}draft_tokens_total{inner} {float(len(accepted) * steps)}",
        f"{name}accepted_tokens_total{inner} {float(accepted.sum())}",
    ]
    comma = "," if labels else ""
    for k, count in enumerate(survived(accepted, steps)):
        rows.append(f'{name}accepted_tokens_per_pos_total{{{labels}{comma}position="{k}"}} {float(count)}')
    return "\n".join(rows) + "\n"


def llama_rounds(accepted: np.ndarray, task: int = 0, steps: int = 3, stamp: str = "0.04.407.201 I ") -> list[str]:
    """What LLAMA_TRACE=1 prints."""
    return [
        f"{stamp}slot   operator(): id  0 | task {task} | accepted {a:2d}/{steps:2d} draft tokens" for a in accepted
    ]


def llama_timing(accepted: np.ndarray, task: int = 0, speed: float = 41.5) -> list[str]:
    """`print_timings`: a request's tokens are the prefill's one and each round's."""
    n = 1 + int(accepted.sum()) + len(accepted)
    head = f"0.05.000.100 I slot print_timing: id  0 | task {task} |"
    took = n / speed * 1000
    return [
        f"{head} prompt eval time =     126.13 ms /    37 tokens (    3.41 ms per token,   293.35 tokens per second)",
        f"{head}        eval time = {took:10.2f} ms / {n:5d} tokens ({took / n:8.2f} ms per token,"
        f" {speed:8.2f} tokens per second)",
        f"{head}       total time = {took + 126.13:10.2f} ms / {n + 37:5d} tokens",
    ]


def llama_request(accepted: np.ndarray, version: str = "builds", task: int = 0, steps: int = 3) -> list[str]:
    """The lines of a request's acceptance."""
    total, drafted, n = int(accepted.sum()), len(accepted) * steps, len(accepted)
    rates = ", ".join(f"{count / n:.3f}" for count in survived(accepted, steps))
    head = f"0.05.000.200 I slot print_timing: id  0 | task {task} |"
    counts = f"= {total / drafted:.5f} ({total:5d} accepted / {drafted:5d} generated)"
    if version == "old":
        return [f"{head} draft acceptance rate {counts}"]
    if version == "June 2026":
        return [f"{head} draft acceptance {counts}, mean acceptance length = {1 + total / n:5.2f}, acceptance rate per"
                f" position = ({rates})"]  # fmt: skip
    return [
        f"{head} draft acceptance {counts}, mean len = {1 + total / n:5.2f}",
        f"{head}      acc per pos = ({rates})",
    ]


def llama_statistics(accepted: np.ndarray, steps: int = 3, positions: bool = True) -> str:
    """`common_speculative_print_stats`, since the start."""
    n, total = len(accepted), int(accepted.sum())
    rates = ", ".join(f"{count / n:.3f}" for count in survived(accepted, steps))
    told = f", #mean acc len = {1 + total / n:.2f}, #acc rate/pos = ({rates})" if positions else ""
    return (
        f"statistics     draft-eagle3: #calls(b,g,a) =    1 {n:6d} {n:6d}, #gen drafts = {n:6d}, #acc drafts ="
        f" {int((accepted > 0).sum()):5d}, #gen tokens = {n * steps:6d}, #acc tokens = {total:5d}{told},"
        " dur(b,g,a) = 0.005, 88.912, 0.100 ms"
    )


def meta_info(accepted: np.ndarray, steps: int = 3, histogram: bool = True) -> dict:
    """A reply of `/generate`."""
    n, total = len(accepted), int(accepted.sum())
    meta = {
        "completion_tokens": 1 + total + n,
        "spec_accept_rate": total / (n * steps),
        "spec_accept_length": (1 + total + n) / n,
        "spec_verify_ct": n,
        "e2e_latency": 2.0,
    }
    if histogram:
        meta["spec_accept_histogram"] = np.bincount(accepted, minlength=steps + 1).tolist()
        meta |= {"spec_accept_token_num": total, "spec_draft_token_num": n * steps}
    return {"text": "…", "meta_info": meta}
