"""Prometheus text: samples gathered by series, given when a scrape ends.

A line is `name{label="value",...} number`; a name that comes again begins another scrape.
(prometheus.io/docs/instrumenting/exposition_formats)
"""

from __future__ import annotations

import re

from eagle3lib.ecosystems._logs import LARGEST_STEPS, NUMBER, Say, Shape, Window, number

_SAMPLE = re.compile(rf"^\s*([a-z_]+):([a-zA-Z0-9_]+)(?:\{{(.*)\}})?\s+{NUMBER}(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
#: Labels that tell engines of one server apart; others name the model or a bucket.
_SOURCES = ("engine", "engine_index", "dp_rank", "model_name", "instance")
#: Series of one scrape that are kept; more are no server's.
_MOST = 4096


class Scrape:
    """Samples of one prefix, engine by engine."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.values: dict[str, dict[tuple[str, int], float]] = {}

    def take(self, line: str) -> dict[str, dict[tuple[str, int], float]]:
        """One line; what the scrape before it held, where this line begins another."""
        found = _SAMPLE.match(line)
        if not found or found[1] != self.prefix:
            return {}
        labels = dict(_LABEL.findall(found[3] or ""))
        source = ",".join(f"{name}={labels[name]}" for name in _SOURCES if name in labels)
        position = labels.get("position", "")
        at = int(position) if position.isdigit() and int(position) < LARGEST_STEPS else -1
        # A process with several workers prints each one's gauge under its own pid or rank.
        others = {k: v for k, v in labels.items() if k not in (*_SOURCES, "position")}
        name = found[2].removesuffix("_total")
        done = {}
        key = (name + "".join(f"|{v}" for v in others.values()), at)
        if key in self.values.get(source, {}) or sum(map(len, self.values.values())) >= _MOST:
            done, self.values = self.values, {}
        self.values.setdefault(source, {})[key] = number(found[4])
        return done

    def end(self) -> dict[str, dict[tuple[str, int], float]]:
        """What the last scrape held."""
        done, self.values = self.values, {}
        return done


def gauge(values: dict[tuple[str, int], float], name: str) -> float | None:
    """The first series of that name."""
    return next((v for (key, _), v in values.items() if key.split("|")[0] == name), None)


def counters(shape: Shape, scrape: dict[str, dict[tuple[str, int], float]], say: Say, **gauges: str) -> None:
    """Windows of totals from the counters that vLLM named first: spec_decode_num_drafts and its three companions."""
    for source, values in scrape.items():
        rounds, accepted = (gauge(values, f"spec_decode_num_{name}") for name in ("drafts", "accepted_tokens"))
        if rounds is None or accepted is None:
            continue
        by_position = {at: v for (key, at), v in values.items() if "accepted_tokens_per_pos" in key and at >= 0}
        survived = tuple(by_position.get(k, 0.0) for k in range(max(by_position, default=-1) + 1))
        others = {field: gauge(values, name) for field, name in gauges.items()}
        window = Window(
            rounds,
            accepted,
            drafted=gauge(values, "spec_decode_num_draft_tokens"),
            survived=survived,
            nodes=len(survived) or None,
            source=source,
            **others,
        )
        say.window(shape, window)
