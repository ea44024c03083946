"""What a server was told, from the case and from its logs, and of what round its numbers therefore are.

A replay is of a chain or a tree, greedy. Where the settings or the numbers themselves show another round, the two
cannot be compared, and the reason is a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eagle3lib import ecosystems
from eagle3lib.acceptance import Rates
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.ecosystems import ENGINE_OF, Engine
from eagle3lib.errors import InputError
from eagle3lib.investigation import Investigation
from eagle3lib.replay import Rollouts
from eagle3lib.rounds import Chances, counted
from eagle3lib.sample import Sample
from eagle3lib.served_comparison import server_rates
from eagle3lib.served_numbers import Numbers
from eagle3lib.serving import ServedLog
from eagle3lib.speculation import RULES, Speculation
from eagle3lib.tree import tree_rollout
from eagle3lib.tree_shapes import TreeShape


@dataclass(frozen=True)
class Setting:
    """One text of a server's arguments, read.

    Attributes:
        source: "served.launch", or the log that shows it.
    """

    source: str
    engine: Engine
    told: Speculation


def settings(inv: Investigation, logs: Sequence[ServedLog]) -> tuple[list[Setting], list[tuple[str, str]]]:
    """What the case's launch and the logs' own lines say; and which texts cannot be read, with why."""
    served, read, refused = inv.case.served, [], []
    texts = [("served.launch", inv.engine, served.launch)] if served and served.launch is not None else []
    for log in logs:
        engine = engine_of(log.best.shape.system, inv.engine)
        texts += [(log.path.name, engine, text) for text in log.launch] if engine else []
    architecture = inv.shape.architecture if inv.shape else None
    for source, engine, text in texts:
        version = served.version if served and engine is inv.engine else None
        try:
            told = engine.speculation(text, architecture, version)
        except InputError as error:
            refused.append((source, str(error)))
        else:
            if (source, told) not in [(s.source, s.told) for s in read]:
                read.append(Setting(source, engine, told))
    return read, refused


def served_round(inv: Investigation) -> TreeShape | None:
    """The round that the case serves: as `served.launch` tells it, else a chain of `served.steps`; None where neither
    says."""
    served = inv.case.served
    for setting in settings(inv, ())[0]:
        told = setting.told
        if told.speculates and told.complete and told.topk == 1:
            return TreeShape.chain(told.steps)
        if told.speculates and told.complete and isinstance(tree := _tree(told), TreeShape):
            return tree
    return TreeShape.chain(served.steps) if served and served.steps else None


def engine_of(system: str, serving: Engine | None) -> Engine | None:
    """Whose log it is: the case's own engine where that writes such lines, else the one of that name."""
    if system not in ENGINE_OF:
        return None
    own = serving is not None and serving.name.startswith(ENGINE_OF[system])
    return serving if own else ecosystems.engine(ENGINE_OF[system])


def told_of(source: str, read: Sequence[Setting]) -> Speculation | None:
    """The settings that a log's numbers were served with: its own line's, else the case's; None where neither says."""
    own = [s.told for s in read if s.source == source]
    return next(iter(own or [s.told for s in read if s.source == "served.launch"]), None)


def round_of(numbers: Numbers, told: Speculation | None, served_steps: int | None, max_steps: int) -> TreeShape | str:
    """The round that the numbers are of, or one sentence why no replay is of it.

    Args:
        told: what the server was told, where that is known.
        served_steps: the case's `served.steps`.
        max_steps: drafts that were replayed.
    """
    if told is not None and (why := _other_rule(told)):
        return why
    if numbers.shortened is not None:
        return f"rounds draft {numbers.shortened:.2f} tokens of up to {numbers.steps}, and the replay drafts all"
    if told is not None and told.topk not in (None, 1):
        return _tree(told)
    stated = (told.steps if told else None) or served_steps
    steps = numbers.steps or stated
    if steps is None:
        return "nothing tells K, the drafts of a round; state served.steps, or served.launch"
    if told is None and served_steps and numbers.steps and numbers.steps > served_steps:
        return (
            f"rounds have up to {numbers.steps} drafts and the case states served.steps = {served_steps}: a tree, whose"
            " shape served.launch would tell, or another server"
        )
    if stated and steps != stated:
        return f"rounds have {steps} drafts by the numbers and {stated} by the settings"
    if steps > max_steps:
        return f"K = {steps} and the replay is {max_steps} deep; run with max_steps = {steps}"
    return TreeShape.chain(steps)


def _other_rule(told: Speculation) -> str | None:
    if not told.speculates:
        return "the server was not told to speculate"
    if told.simulated is not None:
        return "acceptance was simulated"
    if told.rule in (None, "match"):
        return None
    return (
        f"drafts are accepted at temperature {told.temperature:g}, where {RULES[told.rule]}; the replay is greedy, and"
        " the table of a temperature is what to compare with"
    )


def _tree(told: Speculation) -> TreeShape | str:
    if told.engine != "sglang":
        return f"the server drafts trees ({told.shape}), whose growth in {told.engine} is not replayed"
    if not told.complete:
        return f"the server drafts trees of a shape that is not known ({told.shape})"
    try:
        return TreeShape.sglang(told.steps, told.topk, told.draft_tokens)
    except ValueError as error:
        return f"the tree cannot be: {error}"


@dataclass(frozen=True)
class Replays:
    """The replays of a case, counted as a server counts.

    Attributes:
        wirings: those of `draft`, by name.
        rollouts: chains by wiring's name, "rewired" among them, as deep as was replayed.
        tree_samples: samples of which trees are drafted.
    """

    draft: Draft
    wirings: Mapping[str, Wiring]
    samples: Sequence[Sample]
    rollouts: Mapping[str, Rollouts]
    tree_samples: int
    _rates: dict = field(default_factory=dict, repr=False)

    def rates(self, shape: TreeShape, numbers: Numbers) -> dict[str, Rates]:
        """Rates by wiring; {} for a tree where no sample is left for trees. Kept for the next numbers.

        Raises:
            ValueError: if the rollouts are not as deep as the chain.
        """
        key = (shape, numbers.last_rounds, "" if numbers.survival else numbers.system)
        if key not in self._rates:
            runs = self.rollouts if shape.topk == 1 else self._trees(shape)
            self._rates[key] = {name: server_rates(run, shape.levels, *key[1:]) for name, run in runs.items() if run}
        return self._rates[key]

    def _trees(self, shape: TreeShape) -> dict[str, list[Chances]]:
        if shape.topk > self.draft.config.draft_vocab_size:
            return {}
        found = {}
        for name, wiring in self.wirings.items():
            trees = [tree_rollout(self.draft, sample, wiring, shape) for sample in self.samples[: self.tree_samples]]
            found[name] = [counted(t.sample, t.starts, t.turns, t.accepted, t.valid) for t in trees]
        return found

    @property
    def longest(self) -> int:
        """Tokens of the longest response."""
        return max((turn.end - turn.begin for sample in self.samples for turn in sample.turns), default=0)
