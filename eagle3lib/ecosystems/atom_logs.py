"""What ATOM says of acceptance: shares of rounds by exactly so many accepted drafts, which is not survival.

Source: `_log` of the draft statistics in ATOM's scheduler.
"""

from __future__ import annotations

import re

from eagle3lib.ecosystems._logs import COUNT, LogReader, Say, Shape, Window, number, survived_of

LINE = Shape(
    "ATOM", "MTP Stats Interval", '"[MTP Stats Interval]"',
    "of an interval: accepted and drafted drafts; the distribution is the share of rounds that accepted exactly so"
    " many, and rounds are drafted / K",
    "windows",
)  # fmt: skip
_LINE = re.compile(rf"Accepted/Total Draft tokens: {COUNT}/{COUNT}, .*?Accepted tokens distribution: \{{(.*)\}}")
_SHARE = re.compile(r"(\d{1,3}): '([\d.]+)%'")


class Reader(LogReader):
    """One window a line."""

    shapes = (LINE,)
    marks = (b"[MTP Stats Interval]",)

    def line(self, line: str, say: Say) -> None:
        found = _LINE.search(line)
        shares = {int(k): number(share) / 100 for k, share in _SHARE.findall(found[3])} if found else {}
        if not found or set(shares) != set(range(len(shares))) or len(shares) < 2:
            return say.odd("cut or changed")
        if max(shares.values()) > 1:
            return say.odd("shares above one")
        accepted, drafted, steps = int(found[1]), int(found[2]), len(shares) - 1
        rounds = drafted // steps
        histogram = [round(shares[k] * rounds) for k in range(steps + 1)]
        survived = survived_of(histogram)
        whole = sum(survived) == accepted and sum(histogram) == rounds
        if not rounds:
            return say.odd("a window without a draft")
        return say.window(
            LINE, Window(rounds, accepted, drafted=drafted, survived=survived if whole else (), nodes=steps)
        )


LOGS = Reader
