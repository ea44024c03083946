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
START_SECONDS, ANSWER_SECONDS = 300, 1800

_ROUND = re.compile(r"task (\d+) \| accepted\s+(\d+)/\s*(\d+) draft tokens")
_ENDED = re.compile(r"task (\d+) \| prompt eval time")
_COUNTER = re.compile(r"^llamacpp:spec_decode_num_(\w+?)_total(?:\{position=\"(\d+)\"\})? (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Verification:
    """One pass in which the target judged a draft."""

    accepted: int
    drafted: int


@dataclass(frozen=True)
class Answer:
    """What a request returned: the generated tokens, and the API's sums."""

    tokens: list[int]
    drafted: int
    accepted: int


class Server:
    """llama-server as a context: it listens within the block, and its log is complete after it."""

    def __init__(self, binary: Path, target: Path, draft: Path, steps: int, log: Path, threads: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._log = log
        self._command = [
            *(str(binary), "-m", str(target), "-md", str(draft)),
            *("--spec-type", "draft-eagle3", "--spec-draft-n-max", str(steps)),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("-t", str(threads), "-tb", str(threads), *FLAGS),
        ]

    def __enter__(self) -> Server:
        with self._log.open("w") as stream:
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
        """Generate after a prompt of token ids, until the end token or `limit` new tokens."""
        body = {"prompt": list(prompt), "n_predict": limit, "temperature": temperature, "seed": seed, **REQUEST}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/completion",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
            return read_answer(json.load(reply))

    def counters(self) -> dict[str, int | list[int]]:
        """The server's own totals since it started, as `/metrics` prints them."""
        return read_counters(self._get("/metrics"))


def read_answer(reply: dict) -> Answer:
    """The fields that matter of a reply of `/completion`.

    Raises:
        RuntimeError: if the tokens are not all there.
    """
    tokens, timings = reply["tokens"], reply["timings"]
    if len(tokens) != timings["predicted_n"]:
        raise RuntimeError(f"the server counts {timings['predicted_n']} tokens and returned {len(tokens)}")
    return Answer(tokens, timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))


def read_counters(text: str) -> dict[str, int | list[int]]:
    """Rounds, drafted and accepted tokens, and accepted tokens by position, of a `/metrics` page."""
    found = _COUNTER.findall(text)
    totals = {name: int(value) for name, position, value in found if not position}
    by_position = sorted((int(position), int(value)) for _, position, value in found if position)
    return {
        "rounds": totals["drafts"],
        "drafted": totals["draft_tokens"],
        "accepted": totals["accepted_tokens"],
        "accepted_by_position": [value for _, value in by_position],
    }


def read_rounds(log: str, answers: Sequence[Answer]) -> list[list[Verification]]:
    """The rounds of each answer, in order, from the log of a server that gave these answers and no others.

    Raises:
        RuntimeError: if the log does not add up to the answers.
    """
    tasks = list(dict.fromkeys(_ENDED.findall(log)))
    rounds: dict[str, list[Verification]] = {task: [] for task in tasks}
    for task, accepted, drafted in _ROUND.findall(log):
        rounds[task].append(Verification(int(accepted), int(drafted)))
    if len(tasks) != len(answers):
        raise RuntimeError(f"the log ends {len(tasks)} requests, {len(answers)} were asked")
    for task, answer in zip(tasks, answers, strict=True):
        logged = sum(r.drafted for r in rounds[task]), sum(r.accepted for r in rounds[task])
        if logged != (answer.drafted, answer.accepted):
            raise RuntimeError(
                f"task {task}: the log has {logged} drafted and accepted tokens, the reply "
                f"{(answer.drafted, answer.accepted)}"
            )
    return [rounds[task] for task in tasks]
