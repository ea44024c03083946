"""A running server, asked the case's own prompts: its counters before and after, as a log would tell them.

Prompts go in as token ids, greedy, so that template and tokenizer have no part in it. Only the address of the case is
contacted. What comes back is untrusted: it is bounded, and read by the same readers as logs.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3lib.bounded_http import Address, address, exchange
from eagle3lib.ecosystems import APIS, ENGINE_OF, LOGS, Engine
from eagle3lib.ecosystems._api import Api, inner
from eagle3lib.ecosystems._logs import LogReader, Shape, Window
from eagle3lib.errors import InputError
from eagle3lib.sample import Sample
from eagle3lib.served_reading import served
from eagle3lib.serving import LONGEST_TOLD, ServedLog
from eagle3lib.tally import Tally

METRICS_SECONDS, ANSWER_SECONDS, ALL_SECONDS = 10.0, 120.0, 600.0
#: A server counts a moment after it answers.
SETTLE_SECONDS = 0.2
#: New tokens of a request at most.
MOST_NEW = 512
#: Tokens a request by which counters may pass the replies: drafts beyond a response's end.
BEYOND = 16


@dataclass(frozen=True)
class Prompt:
    """The tokens before a recorded response, and the response."""

    name: str
    token_ids: list[int]
    recorded: list[int]


def prompts(samples: Sequence[Sample], n: int) -> list[Prompt]:
    """The first turn of n samples, spread evenly over all."""
    whole = [s for s in samples if s.turns and s.turns[0].begin > 0 and s.first_position == 0]
    chosen = [whole[i * len(whole) // n] for i in range(n)] if n < len(whole) else whole
    found = []
    for sample in chosen:
        turn, ids = sample.turns[0], sample.token_ids.tolist()
        found.append(Prompt(sample.name, ids[: turn.begin], ids[turn.begin : turn.end][:MOST_NEW]))
    return found


@dataclass
class _Heard:
    """What readers make of replies and metrics."""

    windows: list[tuple[Shape, Window]] = field(default_factory=list)

    def window(self, shape: Shape, window: Window) -> None:
        if window.sound:
            self.windows.append((shape, window))

    def odd(self, reason: str) -> None:
        """Left out: what a reply does not count, its server's metrics do."""

    def hint(self, text: str) -> None:
        """Left out, as what is odd."""


def ask(url: str, engine: Engine, asked: Sequence[Prompt]) -> ServedLog:
    """Send prompts one after another, and read what the server counted for them.

    Raises:
        InputError: if the engine's requests are not known, the address is none, the server does not answer as the
            engine does, or it counts nothing.
    """
    api = next((api for api in APIS if engine.name.startswith(ENGINE_OF[api.system])), None)
    if api is None:
        known = ", ".join(api.system for api in APIS)
        raise InputError(f"A running {engine.label} cannot be asked; {known} can. Give its log in served.logs.")
    if not asked:
        raise InputError("A running server is asked the prompts of a dump, and no dump of the case holds one.")
    to, until = address(url), time.monotonic() + ALL_SECONDS
    model = _model(to) if api.names_model else ""
    before, missing = _counters(to, api)
    requests, moved, generated, same, answered, stopped = _Heard(), _Heard(), 0, 0, 0, []
    for prompt in asked:
        body = json.dumps(api.body(prompt.token_ids, len(prompt.recorded), model)).encode()
        left = min(ANSWER_SECONDS, until - time.monotonic())
        try:
            reply = _json(exchange(to, api.path, body, seconds=left), f"{to} at {api.path}")
        except InputError as error:
            if not answered:
                raise
            stopped = [f"{answered} of {len(asked)} prompts were answered, then: {str(error).rstrip('.')}"]
            break  # what was counted before it stands; what that prompt moved is not asked for
        generated += _count(api.generated(reply), to, api)
        same += api.tokens(reply) == prompt.recorded
        answered += 1
        _reader(api).record(reply, requests)
        if not missing:
            time.sleep(SETTLE_SECONDS)
            for shape, now in _counters(to, api)[0]:
                moved.window(shape, _since(before, shape, now))
    notes = [f"{same} of {answered} responses are the recorded ones, token for token", *stopped, *missing]
    if _passed(moved, generated, answered):
        moved.windows.clear()
        notes.append(f"counters moved by more than the {generated} tokens of these replies, so others were answered")
    return _as_log(to, api, [*moved.windows, *requests.windows], notes)


def _since(before: Sequence[tuple[Shape, Window]], shape: Shape, now: Window) -> Window:
    """Totals counted from before the first prompt.

    Raises:
        InputError: if they fell.
    """
    then = next((w for s, w in before if s == shape and w.source == now.source), None)
    if then is None:
        return now
    if now.rounds < then.rounds or now.accepted < then.accepted:
        raise InputError("The server's counters fell while it was asked, as after a restart; ask again.")
    return now.since(then)


def _passed(moved: _Heard, generated: int, n: int) -> bool:
    """Whether the counters hold more than these requests."""
    last = {(shape, window.source): window for shape, window in moved.windows}
    by_shape = Counter[Shape]()
    for (shape, _), window in last.items():
        by_shape[shape] += window.rounds + window.accepted
    return any(tokens > generated + BEYOND * n for tokens in by_shape.values())


def _as_log(to: Address, api: Api, windows: Sequence[tuple[Shape, Window]], notes: Sequence[str]) -> ServedLog:
    order = {shape: i for i, shape in enumerate(_reader(api).shapes)}
    tallies: dict[Shape, Tally] = {}
    for shape, window in windows:
        if window.rounds > 0:
            tallies.setdefault(shape, Tally(shape)).add(window)
    told = sorted((t for t in tallies.values() if t.windows), key=lambda t: order[t.shape])
    if not told:
        said = f" ({'; '.join(notes[1:])})" if notes[1:] else ""
        raise InputError(
            f"{to} answered and counted no round of speculation{said}; start it with its draft, and with its metrics."
        )
    return ServedLog(Path(str(to)), tuple(map(served, told)), (), tuple(notes))


def _counters(to: Address, api: Api) -> tuple[list[tuple[Shape, Window]], list[str]]:
    """The totals of /metrics by shape and engine; or why there are none."""
    try:
        text = exchange(to, "/metrics", seconds=METRICS_SECONDS).decode("utf-8", errors="replace")
    except InputError as error:
        return [], [f"no counters by position: {error}"]
    heard, reader = _Heard(), _reader(api)
    for line in text.splitlines():
        if len(line) <= LONGEST_TOLD and any(mark.decode() in line for mark in reader.marks):
            reader.line(line, heard)
    reader.finish(heard)
    return [(shape, window) for shape, window in heard.windows if shape.over == "totals"], []


def _reader(api: Api) -> LogReader:
    return next(reader for reader in LOGS if reader.shapes[0].system == api.system)()


def _model(to: Address) -> str:
    listed = _json(exchange(to, "/v1/models", seconds=METRICS_SECONDS), f"{to} at /v1/models")
    name = inner(listed, "data", 0, "id")
    if not isinstance(name, str):
        raise InputError(f"Expected a model's name of {to} at /v1/models, found none.")
    return name


def _json(reply: bytes, what: str) -> dict[str, Any]:
    try:
        read = json.loads(reply)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise InputError(f"Expected a JSON object of {what}, found {reply[:40]!r}; is it the engine of the case?")
    return read


def _count(value: object, to: Address, api: Api) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10**6:
        raise InputError(f"Expected {api.system}'s count of generated tokens of {to}, found none; is it that engine?")
    return value
