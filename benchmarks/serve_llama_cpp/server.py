"""A running llama-server: prompts go in as token ids, its own tokens, rounds and counters come out.

The API sums a request's drafts, so single rounds are read from the log: with `LLAMA_TRACE=1` the server writes
one line for each verification, `accepted  2/ 4 draft tokens`. Sums of those lines are held against the API's.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lib.recorded_serving import Counters

#: Keys, values and attention in float32, one request at a time, nothing kept between requests.
FLAGS = (
    *("-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "-fa", "off"),
    *("-c", "1024", "-np", "1", "--cache-ram", "0", "--metrics", "--log-colors", "off"),
)
#: What a request asks beside its prompt, seed and temperature. A cached prefix can keep a stale draft entry.
REQUEST = {
    "cache_prompt": False, "return_tokens": True, "samplers": ["temperature"],
    "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0,
}  # fmt: skip
START_SECONDS, ANSWER_SECONDS, LOG_SECONDS = 300, 1800, 10

_ROUND = re.compile(r"\| accepted\s+(\d+)/\s*(\d+) draft tokens")
_DRAFTING = re.compile(r"statistics .* dur\(b,g,a\) = ([\d.]+), ([\d.]+), ([\d.]+) ms")
_COUNTER = re.compile(r"^llamacpp:spec_decode_num_(\w+?)_total(?:\{position=\"(\d+)\"\})? (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Verification:
    """One pass in which the target judged a draft."""

    accepted: int
    drafted: int


@dataclass(frozen=True)
class Answer:
    """What a request returned: the generated tokens, its rounds in order, and the seconds after the prompt."""

    tokens: list[int]
    rounds: list[Verification]
    seconds: float | None  # None where a reply was recorded without its times


class Server:
    """llama-server as a context: it listens within the block, and appends to its log."""

    def __init__(self, binary: Path, target: Path, draft: Path | None, steps: int, log: Path, threads: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._log = log
        self._command = [
            *(str(binary), "-m", str(target)),
            *(() if draft is None else ("-md", str(draft), "--spec-type", "draft-eagle3")),
            *(() if draft is None else ("--spec-draft-n-max", str(steps))),
            *("--host", "127.0.0.1", "--port", str(self._port), "-lv", "4"),
            *("-t", str(threads), "-tb", str(threads), *FLAGS),
        ]

    def __enter__(self) -> Server:
        with self._log.open("a") as stream:
            self._process = subprocess.Popen(
                self._command, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, "LLAMA_TRACE": "1"}
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"llama-server stopped with code {self._process.returncode}; see {self._log}.")
            try:
                self._get("/health")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.5)
            else:
                return
        raise RuntimeError(f"llama-server did not answer within {START_SECONDS} s; see {self._log}.")

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30) as reply:
            return reply.read().decode()

    def complete(self, prompt: Sequence[int], limit: int, temperature: float = 0.0, seed: int = 0) -> Answer:
        """Generate after a prompt of token ids, until the end token or `limit` new tokens.

        Raises:
            RuntimeError: if the log does not add up to the reply.
        """
        body = {"prompt": list(prompt), "n_predict": limit, "temperature": temperature, "seed": seed, **REQUEST}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/completion",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        written = self._log.stat().st_size
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
            fields = json.load(reply)
        deadline = time.monotonic() + LOG_SECONDS
        while True:  # the server writes its log from a thread of its own
            with self._log.open("rb") as stream:
                stream.seek(written)
                lines = stream.read().decode(errors="replace")
            try:
                return read_answer(fields, lines)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def drafting_seconds(self) -> float:
        """What this server says that it spent on drafts so far; 0 before its first, and without a draft."""
        found = _DRAFTING.findall(self._log.read_text(errors="replace"))
        return sum(map(float, found[-1])) / 1e3 if found else 0.0

    def counters(self) -> Counters:
        """The server's own totals since it started, as `/metrics` prints them."""
        return read_counters(self._get("/metrics"))


def read_answer(reply: dict, log: str) -> Answer:
    """A reply of `/completion`, with the rounds that were logged on the way.

    Raises:
        RuntimeError: if the tokens are not all there, or the log has other sums than the reply.
    """
    tokens, timings = reply["tokens"], reply["timings"]
    if len(tokens) != timings["predicted_n"]:
        raise RuntimeError(f"the server counts {timings['predicted_n']} tokens and returned {len(tokens)}")
    rounds = [Verification(int(accepted), int(drafted)) for accepted, drafted in _ROUND.findall(log)]
    logged = sum(r.drafted for r in rounds), sum(r.accepted for r in rounds)
    told = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
    if logged != told:
        raise RuntimeError(f"the log has {logged} drafted and accepted tokens, the reply {told}")
    milliseconds = timings.get("predicted_ms")
    return Answer(tokens, rounds, None if milliseconds is None else milliseconds / 1e3)


def read_counters(text: str) -> Counters:
    """The totals of a `/metrics` page. Positions are listed once there was a round."""
    found = _COUNTER.findall(text)
    totals = {name: int(value) for name, position, value in found if not position}
    by_position = sorted((int(position), int(value)) for _, position, value in found if position)
    return Counters(
        rounds=totals["drafts"],
        drafted=totals["draft_tokens"],
        accepted=totals["accepted_tokens"],
        accepted_by_position=tuple(value for _, value in by_position),
    )
