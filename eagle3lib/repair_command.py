"""`python -m eagle3lib repair`: a draft that is fed other boundaries than it was trained on, mended without training.

Prints the ladder and writes the lowest rung that suffices, else the highest that is worth it. Exit codes: 0 written, or
nothing to repair; 3 no rung holds and nothing is written; 2 a user's mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from eagle3lib import ecosystems
from eagle3lib.boundaries import FINAL_NORMED, Boundary, Wiring, boundary_name
from eagle3lib.case import DumpSection, load_case
from eagle3lib.ecosystems import Engine
from eagle3lib.errors import InputError
from eagle3lib.investigation import Investigation
from eagle3lib.material import Material
from eagle3lib.repair import climb
from eagle3lib.repair_screen import show
from eagle3lib.repaired_checkpoint import moves, own_embedding, save_repaired, save_rewired
from eagle3lib.rewire import rewire
from eagle3lib.rungs import MARGIN
from eagle3lib.search import Search, Searches
from eagle3lib.turned_target import needs_own_embedding, why_embedding_unused

#: Response tokens on which the states are asked what fed `fc` in training.
SEARCHED = 2000
#: Shares of the prompts to fit, to choose on and to judge on; with a dump to fit from, of that dump's prompts.
SHARES, FIT_SHARES = (3, 1, 2), (10, 1)


@dataclass(frozen=True)
class Serving:
    """What is to serve the repaired draft."""

    engine: Engine
    version: str | None
    wiring: Wiring
    stated: bool  # by the case, as seen in a log

    def settings(self, inv: Investigation) -> dict[str, Any]:
        """The served ids in the engine's spelling, where config.json leaves them to its default.

        {} where it names them, or where a log says what was captured and so the config is not what decides.
        """
        if self.stated or inv.shape is None or self.engine.read_ids(inv.served_config).ids is not None:
            return {}
        ids = self.engine.ids(self.wiring.slots, inv.shape, self.version).ids
        return {} if ids is None else self.engine.settings(ids)


def repair(
    case: Annotated[Path, typer.Option(help="The investigation: a case.toml with [served].")],
    out: Annotated[Path, typer.Option(help="A new folder for the repaired checkpoint.")],
    engine: Annotated[str | None, typer.Option(help="That is to serve it, such as sglang; the case's own.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Such as 0.5.23.")] = None,
    fit_dump: Annotated[str | None, typer.Option(help="The case's dump to fit from; the others judge.")] = None,
    served_dump: Annotated[
        str | None, typer.Option(help="The dump of the served stack's states, where it has same_tokens_as.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Draft length K to judge by; the case's own, or 4.")] = None,
    margin: Annotated[float, typer.Option(min=0, help="Tokens a round that may be lost without a word.")] = MARGIN,
    every_rung: Annotated[bool, typer.Option("--every-rung", help="Climb on where a rung suffices.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Mend a draft that is fed other boundaries than it was trained on, without training."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        inv = Investigation(load_case(case.expanduser()), device)
        code = _repair(inv, out.expanduser(), console, engine, engine_version, (fit_dump, served_dump), steps, margin,
                       every_rung)  # fmt: skip
    except InputError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(escape(str(error)), style="red")
        raise typer.Exit(2) from None
    raise typer.Exit(code)


def _repair(
    inv: Investigation,
    out: Path,
    console: Console,
    engine: str | None,
    version: str | None,
    dumps: tuple[str | None, str | None],
    steps: int | None,
    margin: float,
    every_rung: bool,
) -> int:
    serving = _serving(inv, engine, version)
    _expect_trained(inv, Searches(inv, SEARCHED).judged, console)
    trained = inv.trained.wiring
    console.print(f"Trained on {escape(str(trained))}; {serving.engine.label} feeds {escape(str(serving.wiring))}.")
    if trained == serving.wiring and dumps[1] is None:
        console.print("It is served as trained: there is nothing to repair.")
        return 0
    found = _material(inv, trained, serving.wiring, *dumps)
    if found is None:
        return _unjudged(inv, trained, serving, out, console)
    sets, turned, tunable = found
    console.print(
        f"Prompts: {len(sets[0].served)} to fit ({sets[0].tokens:,} tokens), {len(sets[1].served)} to choose on,"
        f" {len(sets[2].served)} to judge on ({sets[2].tokens:,} tokens)."
    )
    steps = steps or (inv.case.served.steps if inv.case.served else None) or 4
    target = inv.target if tunable else None
    ladder = climb(inv.draft, trained, serving.wiring, sets, target, steps=steps, margin=margin, every_rung=every_rung)
    show(ladder, console)
    if ladder.chosen is None:
        return 3 if ladder.broken.lost.low > 0 else 0
    notes = {"repair": ladder.chosen.name, "engine": serving.engine.name, **moves(ladder.rewired), **ladder.to_json()}
    embedding = _embedding(inv, serving, turned)
    folder = save_repaired(ladder.chosen.draft, out, inv.served_config, serving.settings(inv), notes, embedding)
    console.print(f"Written to {escape(str(folder))}; provenance.json lists what differs. Serve it as a canary first.")
    return 0


def _expect_trained(inv: Investigation, judged: Search | None, console: Console) -> None:
    """Check that something says what fed `fc` in training, and that the states do not say otherwise.

    Raises:
        InputError: if nothing says, or the states contradict what the files imply. What the case itself states is
            believed, with a warning.
    """
    fits = "" if judged is None else f"the states of the dump {judged.dump!r} fit {judged.best} best"
    if inv.trained is None:
        raise InputError(
            f"Nothing says what fed fc in training{f', and {fits}' if fits else ''}: state it as training.boundaries in"
            f" {inv.case.path}."
        )
    if judged is None or not judged.contradicts(inv.trained.wiring.slots):
        return
    told = f"fc was fed {inv.trained.wiring} in training ({inv.trained.source}), but {fits}"
    if inv.case.training.boundaries is None:
        raise InputError(
            f"The files say that {told}; a repair from the wrong wiring would make the draft worse. State the one that"
            f" is right as training.boundaries in {inv.case.path}; notebook 04 shows how far they are apart."
        )
    console.print(f"The case states that {escape(told)}. It is believed; notebook 04 shows how far they are apart.")


def _serving(inv: Investigation, name: str | None, version: str | None) -> Serving:
    """The engine by the command line, else by the case, and what it feeds `fc`."""
    section = inv.case.served
    if name is None and section is None:
        raise InputError(f"{inv.case.path} has no [served]; name what serves with --engine.")
    engine = ecosystems.engine(name or section.engine)
    same = section is not None and engine is inv.engine
    version = version or (section.version if same else None)
    if same and section.boundaries is not None:
        return Serving(engine, version, inv.served.wiring, stated=True)
    if inv.shape is None:
        raise InputError(f"{inv.case.path} names no target, whose depth the engine's layer ids depend on.")
    ids = engine.read_ids(inv.served_config)
    return Serving(engine, version, Wiring(engine.boundaries(ids, inv.shape, version)), stated=False)


def _material(
    inv: Investigation, trained: Wiring, served: Wiring, fit_dump: str | None, served_dump: str | None
) -> tuple[list[Material], bool | None, bool] | None:
    """Three sets of prompts, whether the served embedding is another (None: not told), and whether a last state is
    held; None where no dump holds the boundaries."""
    if fit_dump and served_dump:
        raise InputError("--fit-dump and --served-dump do not go together: a repeated dump is fitted and judged alone.")
    if served_dump:
        own = _section(inv, served_dump)
        if own.same_tokens_as is None:
            raise InputError(f"The dump {own.name!r} does not say same_tokens_as, so nothing tells what it repeats.")
        truth, extra = _section(inv, own.same_tokens_as), {0} & set(inv.stored_boundaries(own))
        last = _last(inv, [truth])
        material = Material(
            tuple(inv.open(own, _distinct([*served.slots, *extra]))),
            tuple(inv.open(truth, _distinct([*trained.slots, *last]))),
        )
        return material.parts(SHARES), needs_own_embedding(inv.draft, material.served), bool(last)
    needed = _distinct([*trained.slots, *served.slots])
    sections = inv.sections(needed)
    with_last = [s for s in sections if _last(inv, [s])]
    if fit_dump:
        _section(inv, fit_dump)
        sections = [s for s in sections if s.name == fit_dump or s in with_last] if with_last else sections
    elif with_last:
        sections = with_last
    if not sections:
        return None
    last = _last(inv, [s for s in sections if not fit_dump or s.name == fit_dump])
    if not fit_dump:
        samples = [sample for s in sections for sample in inv.open(s, _distinct([*needed, *last]))]
        return Material.of(samples).parts(SHARES), False, bool(last)
    fitted = [sample for s in sections if s.name == fit_dump for sample in inv.open(s, _distinct([*needed, *last]))]
    judged = [sample for s in sections if s.name != fit_dump for sample in inv.open(s, needed)]
    if not fitted or not judged:
        names = ", ".join(map(boundary_name, needed))
        raise InputError(f"Expected {names} in the dump {fit_dump!r} and in another to judge on, found one only.")
    return [*Material.of(fitted).parts(FIT_SHARES), Material.of(judged)], False, bool(last)


def _section(inv: Investigation, name: str) -> DumpSection:
    found = next((s for s in inv.case.dumps if s.name == name), None)
    if found is None:
        names = ", ".join(s.name for s in inv.case.dumps)
        raise InputError(f"{inv.case.path} names no dump {name!r}; it has {names}.")
    return found


def _last(inv: Investigation, sections: list[DumpSection]) -> list[Boundary]:
    """B(n) or its norm, whichever all of the dumps hold; [] where neither."""
    wanted = [inv.shape.n_layers, FINAL_NORMED] if inv.shape else []
    return [b for b in wanted if sections and all(b in inv.stored_boundaries(s) for s in sections)][:1]


def _distinct(boundaries: list[Boundary]) -> list[Boundary]:
    return list(dict.fromkeys(boundaries))


def _embedding(inv: Investigation, serving: Serving, turned: bool | None):
    """The embedding to write, None where the target's own will do."""
    if not turned:
        return None
    if reason := why_embedding_unused(inv.draft, serving.engine, inv.served_config):
        raise InputError(
            f"The served target's embedding is another than the draft was trained with, and {serving.engine.label}"
            f" would not use the draft's own ({reason}); nothing is written. Serve with an engine that does, or"
            " the target that the draft was trained for."
        )
    return own_embedding(inv.draft)


def _unjudged(inv: Investigation, trained: Wiring, serving: Serving, out: Path, console: Console) -> int:
    """Without a dump that holds the boundaries: moved columns alone, which nobody judged."""
    rewired = rewire(inv.draft, trained, serving.wiring)
    folder = save_rewired(rewired, out, inv.served_config)
    lost = ", ".join(map(boundary_name, rewired.lost)) or "none"
    console.print(
        f"No greedy dump holds {escape(str(trained))} and {escape(str(serving.wiring))}, so nothing could be fitted or"
        f" judged. Columns moved, boundaries lost: {lost}. Written to {escape(str(folder))}."
    )
    return 0
