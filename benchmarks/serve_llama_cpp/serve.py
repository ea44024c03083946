"""Serves the held-out prompts with llama.cpp and compares its rounds with the replay of its own tokens.

    python benchmarks/serve_llama_cpp/serve.py                       build, serve every run, compare, record
    python benchmarks/serve_llama_cpp/serve.py --engine FOLDER       with FOLDER/src and FOLDER/build as they are
    python benchmarks/serve_llama_cpp/serve.py --run K4 --run K4_again

Answers are kept in the work folder as they come: an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import compare
import models
import source
import torch
import typer
from rich.console import Console
from rich.table import Table
from server import FLAGS, REQUEST, Server, Verification

from eagle3lib import Draft, Wiring, ecosystems, load_case, load_draft
from eagle3lib.investigation import Investigation
from eagle3lib.recorded_serving import (
    Counters,
    Mended,
    RecordedServing,
    ServedRun,
    differing_rounds,
    measured,
    repeat_difference,
)

BUNDLED = Path(__file__).parent.parent.parent / "data" / "smollm2"
NEW_TOKENS = 160  # as many as the dumped answers have
TEMPERATURE = 0.8
BY_POSITION = "accepted_by_position"
NOTHING = {"rounds": 0, "drafted": 0, "accepted": 0, BY_POSITION: []}


@dataclass(frozen=True)
class Plan:
    """One run: which draft, K, temperature, and how many prompts, all that fit where None."""

    name: str
    draft: str
    steps: int
    temperature: float = 0.0
    prompts: int | None = None


#: How each draft was mended, and for which boundaries it is served: its own, those that SGLang makes of the served
#: config's ids, or those that llama.cpp itself makes of them.
DRAFTS: dict[str, tuple[Mended, str]] = {
    "right": ("trained", "trained"),
    "wrong": ("trained", "served"),
    "rewired": ("rewired", "served"),
    "refitted": ("refitted", "served"),
    "astray": ("trained", "as listed"),
    "astray_refitted": ("refitted", "as listed"),
}
#: Raising a number of prompts serves only those that are new.
PLANS = (
    Plan("K4", "right", 4),
    Plan("K4_again", "right", 4),
    Plan("K2", "right", 2, prompts=12),
    Plan("K8", "right", 8, prompts=12),
    Plan("wrong_K4", "wrong", 4, prompts=12),
    Plan("rewired_K4", "rewired", 4, prompts=12),
    Plan("refitted_K4", "refitted", 4, prompts=12),
    Plan("astray_K4", "astray", 4, prompts=12),
    Plan("astray_refitted_K4", "astray_refitted", 4, prompts=12),
    Plan("sampled_K4", "right", 4, TEMPERATURE, prompts=10),
)


@dataclass(frozen=True)
class Prompt:
    """A dumped sample's prompt and the answer that was recorded with it."""

    name: str
    prompt: list[int]
    recorded: list[int]
    temperature: float


@cache
def living_target():
    """The whole target through transformers, once it is needed: while a server runs, it need not lie in memory."""
    sys.path.insert(0, str(BUNDLED))
    from living_target import LivingTarget

    return LivingTarget()


def served_wirings(inv: Investigation) -> dict[str, Wiring]:
    """What feeds `fc`: as trained, as the case's engine reads the served ids, and as llama.cpp reads them."""
    engine = ecosystems.engine("llama_cpp")
    listed = engine.boundaries(engine.read_ids(inv.served_config), inv.shape, None)
    return {"trained": inv.trained.wiring, "served": inv.served.wiring, "as listed": Wiring(listed)}


def held_out(investigation: Investigation) -> list[Prompt]:
    """The prompts of every dump, named dump/file."""
    found = []
    for section in investigation.case.dumps:
        for sample in investigation.open(section, []):
            begin, ids = sample.turns[0].begin, sample.token_ids.tolist()
            name = f"{section.name}/{Path(sample.name).stem}"
            found.append(Prompt(name, ids[:begin], ids[begin:], section.temperature))
    return found


def asked(prompts: list[Prompt], plan: Plan) -> list[Prompt]:
    """Greedy runs ask what was answered greedily; sampled runs ask everything."""
    return [p for p in prompts if plan.temperature or p.temperature == 0][: plan.prompts]


def answers_of(plan: Plan, work: Path) -> Path:
    """Where a run's answers are kept."""
    return work / f"{plan.name}.json"


def serve(plan: Plan, prompts: list[Prompt], server: Server, file: Path) -> None:
    """Ask what the file does not hold yet, and write it after every answer."""
    run = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"answers": [], "counters": NOTHING}
    if len(run["answers"]) >= len(prompts):
        return
    with server:
        for seed in range(len(run["answers"]), len(prompts)):
            before = server.counters()
            answer = server.complete(prompts[seed].prompt, NEW_TOKENS, plan.temperature, seed)
            run["answers"].append({"tokens": answer.tokens, "rounds": [[r.accepted, r.drafted] for r in answer.rounds]})
            run["counters"] = added(run["counters"], before, server.counters())
            run["date"] = datetime.date.today().isoformat()
            file.write_text(json.dumps(run), encoding="utf-8")


def added(total: dict, before: Counters, after: Counters) -> dict:
    """The total with what the server counted from `before` to `after`."""
    sums = {name: total[name] + getattr(after, name) - getattr(before, name) for name in NOTHING if name != BY_POSITION}
    lists = (total[BY_POSITION], after.accepted_by_position, before.accepted_by_position)
    by_position = [t + a - b for t, a, b in zip_longest(*lists, fillvalue=0)]
    return {**sums, BY_POSITION: by_position}


def compared(
    plan: Plan, served: dict, prompts: list[Prompt], draft: Draft, item: models.Served, prefills: compare.Prefills
) -> ServedRun:
    """The run with the replay of its tokens."""
    requests = []
    for seed, (prompt, answer) in enumerate(zip(prompts, served["answers"], strict=False)):
        sample = prefills.sample(prompt.name, prompt.prompt, answer["tokens"], plan.temperature)
        rounds = [Verification(*r) for r in answer["rounds"]]
        replayed = compare.replay(draft, sample, item.slots, plan.steps)
        requests.append(compare.request(sample, prompt.recorded, seed, rounds, replayed))
    return ServedRun(
        name=plan.name,
        draft=item.mended,
        captured=item.slots,
        steps=plan.steps,
        temperature=plan.temperature,
        counters=Counters(**served["counters"]),
        requests=tuple(requests),
    )


def rates(runs: list[ServedRun]) -> Table:
    """Engine and replay side by side, last rounds apart."""
    table = Table("run", "side", "rounds", "AL", "survival 1..K", "other rounds")
    for run in runs:
        for side in ("engine", "replay"):
            found = measured(run.requests, run.steps, side)
            survival = " ".join(f"{s.value:.4f}" for s in found.survival)
            other = str(differing_rounds(run.requests)) if side == "replay" else ""
            table.add_row(run.name, side, str(found.length.count), f"{found.length.value:.4f}", survival, other)
    return table


def main(
    run: Annotated[list[str] | None, typer.Option(help="Only these runs, and nothing recorded.")] = None,
    engine: Annotated[Path, typer.Option(help="Holds src and build; made where they are not there.")] = source.WORK,
    work: Annotated[Path, typer.Option(help="Models, logs and answers.")] = source.WORK,
    out: Annotated[Path, typer.Option(help="The recording.")] = BUNDLED / "served.json",
    threads: Annotated[int, typer.Option(help="Of the server and the replay; 1 where others use the machine.")] = 2,
) -> None:
    """Serve, compare, record."""
    plans = [plan for plan in PLANS if not run or plan.name in run]
    if len(plans) < len(run or PLANS):
        raise typer.BadParameter(f"the runs are {', '.join(plan.name for plan in PLANS)}", param_hint="--run")
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)
    llama = source.obtain(engine, threads)
    investigation = Investigation(load_case(BUNDLED / "case.toml"), "cpu")
    wirings = served_wirings(investigation)
    target, target_gguf = models.write_target(living_target, llama, work)
    drafts = {}
    for name in dict.fromkeys(plan.draft for plan in plans):
        mended, boundaries = DRAFTS[name]
        drafts[name] = models.write_draft(
            name, mended, investigation.draft, wirings["trained"], wirings[boundaries], target, llama, work
        )
    weights = {name: load_draft(item.folder, investigation.target, "cpu") for name, item in drafts.items()}
    prompts = held_out(investigation)
    prefills = compare.Prefills(living_target, sorted({b for wiring in wirings.values() for b in wiring.slots}))
    for plan in plans:
        log, gguf = work / f"{plan.name}.log", drafts[plan.draft].gguf
        server = Server(llama.server, target_gguf, gguf, plan.steps, log, threads)
        serve(plan, asked(prompts, plan), server, answers_of(plan, work))
    console, runs, dates = Console(), [], []
    for plan in plans:
        served = json.loads(answers_of(plan, work).read_text(encoding="utf-8"))
        dates.append(served["date"])
        ours, item = asked(prompts, plan), drafts[plan.draft]
        runs.append(compared(plan, served, ours, weights[plan.draft], item, prefills))
    console.print(rates(runs))
    by_name = {r.name: r for r in runs}
    if {"K4", "K4_again"} <= by_name.keys():
        tokens, rounds, both = repeat_difference(by_name["K4"], by_name["K4_again"])
        console.print(f"K4 served twice: of {both} responses the tokens of {tokens} differ and the rounds of {rounds}")
    if run:
        return  # a recording holds every run
    record = RecordedServing(
        engine="llama.cpp",
        version=engine_version(llama.server),
        source=source.SDIST,
        command=f"python benchmarks/serve_llama_cpp/serve.py --threads {threads}",
        date=max(dates),
        target="SmolLM2-135M-Instruct, Q4_1 dequantised to float32",
        flags=FLAGS,
        request=REQUEST,
        new_tokens=NEW_TOKENS,
        replay={name: version(name) for name in ("eagle3lib", "torch", "transformers")},
        runs=tuple(runs),
    )
    out.write_text(text_of(record), encoding="utf-8")


def text_of(record: RecordedServing) -> str:
    """JSON with a line for every list of numbers."""
    indented = json.dumps(record.model_dump(mode="json"), indent=1)
    return re.sub(r"\[[\s\d,]*\]", lambda found: re.sub(r"\s+", "", found[0]), indented) + "\n"


def engine_version(server: Path) -> str:
    """What the binary says of itself."""
    done = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    lines = (done.stdout + done.stderr).splitlines()
    return next(line.removeprefix("version: ") for line in lines if line.startswith("version: "))


if __name__ == "__main__":
    typer.run(main)
