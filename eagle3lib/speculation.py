"""How a server was told to speculate: one record, whoever serves, and for each field why it holds.

    steps          depth of the deepest draft; K of a chain
    topk           children that each node of the beam offers; 1 is a chain
    draft_tokens   nodes that one verification computes, the root included; K + 1 for a chain

What a text does not say and no rule of the engine gives is None, never guessed; `readings` lists what it may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from eagle3lib.tree_shapes import TreeShape

#: Why a field has its value. "stated": the text says so. "reported": the engine's own line says so, defaults filled
#: in. "forced": a rule of the engine, whatever was asked. "guessed": the engine chooses by what it finds.
#: "default": the same for everyone. "unknown": it has none.
Kind = Literal["stated", "reported", "forced", "guessed", "default", "unknown"]

#: How drafts are accepted, by the names of `eagle3lib.rules`, and "relaxed" for a lossy rule that is not there.
Rule = Literal["match", "one-hot draft", "target only", "rejection", "block", "thresholds", "typical", "relaxed"]
RULES: dict[Rule, str] = {
    "match": "a draft is kept where it is the target's own first choice",
    "one-hot draft": "a draft is kept where it is the token that the target draws",
    "target only": "a draft d is kept with chance p(d), which is where it is the token that the target draws",
    "rejection": "a draft x is kept with chance min(1, p(x)/q(x))",
    "block": "a round's drafts are kept together, by the product of their p/q",
    "thresholds": "a draft d is kept with a chance above p(d), so tokens are kept that the target would not draw",
    "typical": "a draft is kept where the target gives it enough, so tokens are kept that it would not draw",
    "relaxed": "drafts are kept that the target would not draw",
}
#: Rules that change what is written.
LOSSY: tuple[Rule, ...] = ("thresholds", "typical", "relaxed")


@dataclass(frozen=True)
class Origin:
    """Why a field has its value.

    Attributes:
        said: the argument as it stands in the text, or the rule that the engine follows.
    """

    kind: Kind
    said: str = ""


@dataclass(frozen=True)
class Hazard:
    """An argument that is known to break speculation.

    Attributes:
        argument: as it stands in the text.
        meaning: what it breaks, in which releases.
        remedy: the line to change.
    """

    argument: str
    meaning: str
    remedy: str


@dataclass(frozen=True)
class Speculation:
    """What a server was told. A server that does not speculate has steps 0, topk 1 and draft_tokens 1.

    Attributes:
        engine: its name in `ecosystems`.
        method: how drafts are made, in the engine's word.
        eagle3: whether that feeds captured states to an EAGLE-3 draft; None where the text does not tell.
        asked_draft_tokens: what was asked, where the engine verifies another number.
        capacity: drafted nodes that the tree can hold at most, the root not counted.
        sampled_rule: how drafts are accepted at a temperature above 0.
        temperature, top_k, top_p: of requests that state none.
        threshold_single, threshold_acc: 1 is lossless.
        simulated: the acceptance that is made up, as the text gives it.
        varying: why rounds draft fewer than `steps`, a sentence each.
        context, draft_context: tokens that the server, and its draft, take.
        overlap: whether a step is prepared while the one before it runs.
        others: arguments that were read and mean nothing here.
        origins: by field.
    """

    steps: int | None
    topk: int | None
    draft_tokens: int | None
    engine: str = ""
    method: str | None = None
    eagle3: bool | None = None
    asked_draft_tokens: int | None = None
    capacity: int | None = None
    sampled_rule: Rule | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    threshold_single: float | None = None
    threshold_acc: float | None = None
    simulated: str | None = None
    varying: tuple[str, ...] = ()
    context: int | None = None
    draft_context: int | None = None
    model: str | None = None
    draft_model: str | None = None
    quantisation: str | None = None
    draft_quantisation: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    prefix_caching: bool | None = None
    overlap: bool | None = None
    version: str | None = None
    hazards: tuple[Hazard, ...] = ()
    others: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted at all."""
        return self.steps != 0

    @property
    def complete(self) -> bool:
        """Whether the shape of a round is known."""
        return None not in (self.steps, self.topk, self.draft_tokens)

    @property
    def longest_round(self) -> int | None:
        """Tokens that a round yields at most, the bonus token included: a path of drafts is as deep as the steps,
        and no longer than there are nodes below the root."""
        known = [n for n in (self.steps, None if self.draft_tokens is None else self.draft_tokens - 1) if n is not None]
        return 1 + min(known) if known else None

    @property
    def rule(self) -> Rule | None:
        """How drafts are accepted; None where the temperature, which decides, is the requests' own."""
        if self.temperature is None:
            return None
        return "match" if self.temperature == 0 else self.sampled_rule

    @property
    def shape(self) -> str:
        """The round in words, for titles and tables."""
        if not self.speculates:
            return "no speculation"
        if self.topk == 1 and self.steps is not None:
            return f"chain K = {self.steps}, {self.draft_tokens} nodes verified"
        numbers = {"topk": self.topk, "steps": self.steps, "nodes verified": self.draft_tokens}
        return ", ".join(f"{name} {'not known' if n is None else n}" for name, n in numbers.items())

    def origin(self, name: str) -> Origin:
        """Why a field has its value."""
        stated: Kind = "unknown" if getattr(self, name) is None else "stated"
        return self.origins.get(name, Origin(stated))


def setting_rows(speculation: Speculation) -> list[dict[str, str]]:
    """A table: each field that has a value or a reason to have none, its source, and what says so."""
    rows = []
    for name in (f.name for f in fields(Speculation)):
        value = getattr(speculation, name)
        if name in ("engine", "hazards", "others", "origins") or (value in (None, ()) and name not in _SHAPE):
            continue
        origin = speculation.origin(name)
        shown = "; ".join(value) if isinstance(value, tuple) else "not known" if value is None else str(value)
        rows.append({"setting": name, "value": shown, "source": origin.kind, "said": origin.said})
    return rows


_SHAPE = ("steps", "topk", "draft_tokens")


@dataclass(frozen=True)
class Reading:
    """One shape that an incomplete text allows.

    Attributes:
        speculation: with steps, topk and draft_tokens filled in.
        sentence: what was filled in, and what that bounds.
    """

    speculation: Speculation
    sentence: str


def readings(speculation: Speculation) -> list[Reading]:
    """The shapes that a text allows: itself where it is complete, or else the chain and the trees at both ends.

    With n = draft_tokens - 1 drafted nodes a chain is n steps deep. A tree of them is at least one step deep (n
    siblings) and at most n (a single path of a beam that is two wide); what steps it has the depth of those. What
    lies between them is not listed. [] where a number is missing that no reading gives.
    """
    if speculation.complete:
        return [Reading(speculation, f"As stated: {speculation.shape}.")]
    steps, topk, asked = speculation.steps, speculation.topk, speculation.draft_tokens
    found = []
    if topk in (None, 1) and (steps is not None or asked is not None):
        depth = asked - 1 if steps is None else steps
        if depth >= 1:
            found.append(_reading(speculation, depth, 1, depth + 1))
    if topk == 1 or asked is None or asked < 3:
        return found
    drafted = asked - 1
    if steps is not None:
        shapes = [(steps, topk or least_topk(steps, drafted))]
    elif topk is not None:
        shapes = [(_least_steps(topk, drafted), topk), (drafted, topk)]
    else:
        shapes = [(1, drafted), (drafted, 2)]
    return found + [_reading(speculation, *shape, asked) for shape in dict.fromkeys(shapes)]


def _reading(speculation: Speculation, steps: int, topk: int, draft_tokens: int) -> Reading:
    values = {"steps": steps, "topk": topk, "draft_tokens": draft_tokens}
    given = {name: getattr(speculation, name) for name in values}
    read = ", ".join(f"{name} {value}" for name, value in values.items() if given[name] != value)
    filled = {n: Origin("unknown", "one of several readings") for n in values if given[n] != values[n]}
    origins = {**speculation.origins, **filled}
    asked = given["draft_tokens"] if given["draft_tokens"] not in (None, draft_tokens) else None
    whole = replace(speculation, **values, asked_draft_tokens=asked, origins=origins)
    kind = "A chain" if topk == 1 else "A tree"
    bound = f"a round yields at most {whole.longest_round} tokens and verifies {draft_tokens} nodes"
    return Reading(whole, f"{kind} ({read}): {bound}.")


def candidates(topk: int, steps: int) -> int:
    """Drafted nodes that a dynamic tree offers: topk below the root, topk² at each further level."""
    return TreeShape(topk, steps, 1, "places", "").candidates


def least_topk(steps: int, drafted: int) -> int:
    """The narrowest beam, of 2 at least, whose tree of so many steps offers so many drafted nodes."""
    return next(k for k in range(2, drafted + 2) if candidates(k, steps) >= drafted)


def _least_steps(topk: int, drafted: int) -> int:
    return max(1, 1 + -(-(drafted - topk) // topk**2))
