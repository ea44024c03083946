"""What a case's server said, held against the case's replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.battery import Outcome, battery
from eagle3lib.case import Case
from eagle3lib.ecosystems import ENGINE_OF
from eagle3lib.errors import InputError
from eagle3lib.investigation import Investigation
from eagle3lib.live_server import Prompt, ask
from eagle3lib.recorded_serving import RecordedServing
from eagle3lib.served_comparison import Comparison, compare
from eagle3lib.served_evidence import ServedNumbers
from eagle3lib.served_numbers import Numbers, of_length, of_log, of_runs, replay_of_run
from eagle3lib.served_settings import Replays, Setting, round_of, settings, told_of
from eagle3lib.serving import ServedLog, read_served
from eagle3lib.speculation import Speculation
from eagle3lib.target import Target
from eagle3lib.tree_shapes import TreeShape

#: What a recorded run is believed to be: the replay of the tokens that the engine itself generated.
OWN_TOKENS = "its own tokens"


@dataclass(frozen=True)
class Said:
    """What a server said of itself.

    Attributes:
        logs: those that tell of speculation, and last what the running server counted.
        settings: what it was told, by the case and by the logs.
        refused: what of these cannot be read, and why.
    """

    logs: list[ServedLog]
    settings: list[Setting]
    refused: list[tuple[str, str]]


@dataclass(frozen=True)
class Held:
    """Numbers and what came of them: a comparison, or one sentence why there is none."""

    numbers: Numbers
    told: Speculation | None
    found: Comparison | None
    why: str = ""


def read_said(inv: Investigation, asked: Sequence[Prompt] | None) -> Said:
    """The case's logs and settings.

    Args:
        asked: prompts to send to the running server that the case names; None contacts nothing.
    """
    served, logs, refused = inv.case.served, [], []
    for path in served.logs if served else ():
        try:
            logs.append(read_served(path))
        except InputError as error:
            refused.append((path.name, str(error)))
    if served and served.url and asked is not None:
        try:
            logs.append(ask(served.url, inv.engine, asked))
        except InputError as error:
            refused.append(("the running server", str(error)))
    told, unread = settings(inv, logs)
    return Said(logs, told, [*refused, *unread])


def held_all(
    case: Case, logs: Sequence[ServedLog], read: Sequence[Setting], replays: Replays, max_steps: int
) -> list[Held]:
    """Every log and the case's printed length, each with the settings that it was served with."""
    served = case.served
    shown = [(of_log(log), told_of(log.path.name, read)) for log in logs]
    if served is not None and served.acceptance_length is not None:
        system = next((name for name, engine in ENGINE_OF.items() if served.engine.startswith(engine)), "")
        shown.append((of_length(served.acceptance_length, system), told_of("served.launch", read)))
    return [held(numbers, told, replays, served.steps if served else None, max_steps) for numbers, told in shown]


def held(
    numbers: Numbers, told: Speculation | None, replays: Replays, served_steps: int | None, max_steps: int
) -> Held:
    """Numbers against the replays of the same round.

    Args:
        told: the server's settings, where they are known.
        served_steps: the case's `served.steps`.
        max_steps: drafts that were replayed.
    """
    shape = round_of(numbers, told, served_steps, max_steps)
    if isinstance(shape, str):
        return Held(numbers, told, None, shape)
    fitted = numbers.of_depth(shape.levels)
    if fitted is None:
        return Held(numbers, told, None, f"drafts were accepted beyond position {shape.levels}, where rounds end")
    rates = replays.rates(shape, fitted)
    if not rates:
        return Held(numbers, told, None, f"no response was replayed as {shape.label}; set tree_samples")
    believed = "served" if "served" in rates else next(iter(rates))
    return Held(numbers, told, compare(fitted, shape, rates, believed, replays.longest))


def recorded(recording: RecordedServing, replays: Replays | None, max_steps: int) -> list[Held]:
    """Each greedy run against the replay of its own tokens, and the case's replays beside it as far as they reach."""
    found = []
    for numbers, run in of_runs(recording):
        rates = {OWN_TOKENS: replay_of_run(run)}
        if replays is not None and run.steps <= max_steps:
            rates |= replays.rates(TreeShape.chain(run.steps), numbers)
        found.append(Held(numbers, None, compare(numbers, TreeShape.chain(run.steps), rates, OWN_TOKENS)))
    return found


def what_the_engine_does(found: Comparison, replays: Replays, target: Target | None) -> Outcome | None:
    """Every hypothesis about the pass held against numbers that no replayed wiring explains; None where the numbers
    are explained, are of a tree, or are not counted by position."""
    explained = found.explained_by or found.kind in ("agrees", "cannot tell")
    if explained or found.believed not in replays.wirings or found.numbers.rates is None or found.tree:
        return None
    evidence = ServedNumbers(replays.samples, found.numbers.rates, found.numbers.last_rounds)
    return battery(replays.draft, replays.wirings[found.believed], evidence, target=target)


def comparison_rows(answers: Sequence[Held]) -> list[dict]:
    """One row a reading: the server's length, every replay's, and which of them gives the server's numbers."""
    rows = []
    for numbers, found, why in ((item.numbers, item.found, item.why) for item in answers):
        row = {
            "numbers": numbers.label,
            "round": found.shape if found else "not compared",
            "rounds": numbers.length.count or None,
            "last rounds": "counted" if numbers.last_rounds else "left out",
            "server": f"{numbers.length:.2f}" if numbers.counted else f"{numbers.length.value:.2f}",
        }
        if found:
            row |= {name: f"{rates.length:.2f}" for name, rates in found.replayed.items()}
        rows.append({**row, "given by": ", ".join(found.explained_by) or "none" if found else why})
    return rows


def position_rows(found: Comparison) -> list[dict]:
    """One row a draft position: S_k of both with intervals, c_k of both, and their ratio."""
    rows, before = [], 1.0
    for k, served in enumerate(found.numbers.survival):
        theirs = found.theirs
        rows.append(
            {
                "k": k + 1,
                "served S_k": f"{served:.3f}",
                "replayed S_k": f"{theirs.survival[k]:.3f}",
                "served c_k": served.value / before if before else np.nan,
                "replayed c_k": theirs.conditional[k].value,
                "ratio of c_k": f"{found.ratios[k]:.2f}" if np.isfinite(found.ratios[k].value) else "too few",
            }
        )
        before = served.value
    return rows


def numbers_of(answers: Sequence[Held]) -> list[dict]:
    """The comparisons for a results file."""
    return [
        {
            "numbers": one.numbers.label,
            "shape": one.shape,
            "kind": one.kind,
            "explained_by": list(one.explained_by),
            "served": one.numbers.length.value,
            **{f"replayed {name}": rates.length.to_json() for name, rates in one.replayed.items()},
        }
        for one in (item.found for item in answers)
        if one is not None
    ]
