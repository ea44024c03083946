"""Where drafts fail: acceptance by the kind of token that was to be drafted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import walk

#: Kinds told from a token's own text, the first that fits. A leading space or sentencepiece's mark is no part of it.
_KINDS = (
    ("special", re.compile(r"<\|?[^<>\s]+\|?>")),
    ("line break", re.compile(r"\s*\n\s*")),
    ("whitespace", re.compile(r"\s*")),
    ("part of a character", re.compile(r".*\ufffd.*", re.DOTALL)),
    ("number", re.compile(r"[+-]?\d[\d.,]*")),
    ("code", re.compile(r".*(?:[_{}\[\]\\=<>#$@^~|`]|::|->|\(\)|\);|//).*|\w+[a-z][A-Z]\w*", re.DOTALL)),
    ("punctuation", re.compile(r"[^\w\s]+")),
)
FIRST, NAME, WORD, PIECE, OTHER = (
    "first of the response", "name or capitalised", "word", "inside a word", "other",
)  # fmt: skip


def token_class(text: str) -> str:
    """The kind of a token by its text: a heuristic for tables, not a parser of code."""
    bare = text.replace("\u2581", " ")
    stripped = bare[1:] if bare.startswith(" ") and len(bare) > 1 and not bare.isspace() else bare
    for name, pattern in _KINDS:
        if pattern.fullmatch(stripped):
            return name
    if stripped[0].isupper() and stripped.isalnum():
        return NAME
    if stripped.isalpha():
        return WORD if bare.startswith(" ") else PIECE
    return OTHER


@dataclass(frozen=True)
class ClassAcceptance:
    """One kind of token.

    Attributes:
        first_step: over all starts, how often step 0 drafts such a token right.
        share: of all recorded tokens that a round may draft.
        ended: of the walk's rounds that a rejection ended, the share whose rejected token was of this kind.
        n_ended: those rounds.
    """

    name: str
    first_step: Estimate
    share: float
    ended: float
    n_ended: int


def acceptance_by_class(rollouts: Sequence[Rollout], text: Callable[[int], str], steps: int) -> list[ClassAcceptance]:
    """Every kind that occurs, from the one that ends most rounds.

    Args:
        text: a token's text by id, as `Target.text`.
        steps: draft length of the walk.
    """
    known: dict[int, str] = {}
    hits: dict[str, np.ndarray] = {}
    ends: dict[str, int] = {}
    for i, rollout in enumerate(rollouts):
        classes = _classes(rollout, text, known)
        right = rollout.hit[:, 0].numpy()
        for name in set(classes):
            sums = hits.setdefault(name, np.zeros((len(rollouts), 2), dtype=int))
            rows = np.array([c == name for c in classes])
            sums[i] += (int(right[rows].sum()), int(rows.sum()))
        row_of = {(t, turn): row for row, (t, turn) in enumerate(_places(rollout))}
        for item in walk(rollout, steps):
            # The rejected draft stood for x[t + 2 + a], which is what step 0 of pair t + a predicts.
            row = row_of.get((item.start + item.accepted, item.turn))
            if item.accepted < steps and not item.cut and row is not None:
                name = classes[row]
                ends[name] = ends.get(name, 0) + 1
    total, ended = sum(int(s[:, 1].sum()) for s in hits.values()), sum(ends.values())
    found = [
        ClassAcceptance(
            name,
            estimate(sums, ratio(0, 1), sums[:, 1].sum()),
            float(sums[:, 1].sum() / total),
            ends.get(name, 0) / ended if ended else float("nan"),
            ends.get(name, 0),
        )
        for name, sums in hits.items()
    ]
    return sorted(found, key=lambda c: (-c.n_ended, c.name))  # ties by name, in every run alike


def _classes(rollout: Rollout, text: Callable[[int], str], known: dict[int, str]) -> list[str]:
    """The kind of what step 0 of each start is to draft. A turn's first such token is a kind of its own."""
    names, previous = [], None
    for token, turn in zip(rollout.recorded[:, 0].tolist(), rollout.turns.tolist(), strict=True):
        if token not in known:
            known[token] = token_class(text(token))
        names.append(FIRST if turn != previous else known[token])
        previous = turn
    return names


def _places(rollout: Rollout) -> list[tuple[int, int]]:
    return list(zip(rollout.starts.tolist(), rollout.turns.tolist(), strict=True))
