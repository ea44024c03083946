"""How fast llama.cpp serves the held-out prompts at several draft lengths and without a draft, in one run.

    python benchmarks/serve_llama_cpp/speed.py                       build where needed, serve, record
    python benchmarks/serve_llama_cpp/speed.py --engine FOLDER       with FOLDER/src and FOLDER/build as they are

Every round of `PASSES` serves every draft length once, in turn, so that a machine which slows down slows all of them.
Run it while nothing else runs: these are wall times.
"""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path
from typing import Annotated

import models
import source
import torch
import typer
from rich.console import Console
from rich.table import Table
from serve import BUNDLED, NEW_TOKENS, engine_version, held_out, living_target
from server import FLAGS, Server

from eagle3lib import load_case
from eagle3lib.investigation import Investigation
from eagle3lib.recorded_speeds import RecordedSpeeds, read_recorded_speeds

#: Draft lengths K; 0 serves the target alone.
LENGTHS = (0, 1, 2, 4, 8)
PASSES = 2


def main(
    engine: Annotated[Path, typer.Option(help="Holds src and build; made where they are not there.")] = source.WORK,
    work: Annotated[Path, typer.Option(help="Models and logs.")] = source.WORK,
    out: Annotated[Path, typer.Option(help="The recording.")] = BUNDLED / "speeds.json",
    prompts: Annotated[int, typer.Option(help="How many of the held-out prompts.")] = 6,
    threads: Annotated[int, typer.Option(help="Of the server.")] = 2,
) -> None:
    """Serve, measure, record."""
    work.mkdir(parents=True, exist_ok=True)
    llama = source.obtain(engine, threads)
    investigation = Investigation(load_case(BUNDLED / "case.toml"), "cpu")
    trained = investigation.trained.wiring
    target, target_gguf = models.write_target(living_target, llama, work)
    draft = models.write_draft("right", "trained", investigation.draft, trained, trained, target, llama, work).gguf
    asked = [p for p in held_out(investigation) if p.temperature == 0][:prompts]
    points = {steps: {"steps": steps, "requests": []} for steps in LENGTHS}
    for turn in range(PASSES):
        for steps in LENGTHS:
            log, drafted_by = work / f"speed_{steps}.log", draft if steps else None
            with Server(llama.server, target_gguf, drafted_by, steps, log, threads) as server:
                server.complete(asked[0].prompt, 16)  # the first request of a server pays for its memory
                for prompt in asked:
                    before = server.drafting_seconds()
                    answer = server.complete(prompt.prompt, NEW_TOKENS)
                    points[steps]["requests"].append(
                        {
                            "sample": prompt.name,
                            "turn": turn,
                            "tokens": len(answer.tokens),
                            "seconds": round(answer.seconds, 4),
                            "draft_seconds": round(server.drafting_seconds() - before, 4),
                            "rounds": len(answer.rounds),
                            "drafted": sum(r.drafted for r in answer.rounds),
                            "accepted": sum(r.accepted for r in answer.rounds),
                        }
                    )
    record = {
        "engine": "llama.cpp",
        "version": engine_version(llama.server),
        "date": datetime.date.today().isoformat(),
        "device": f"{platform.machine()} processor, {threads} threads",
        "target": "SmolLM2-135M-Instruct, Q4_1 dequantised to float32",
        "flags": list(FLAGS),
        "new_tokens": NEW_TOKENS,
        "points": list(points.values()),
    }
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    Console().print(speeds(read_recorded_speeds(out)))


def speeds(recording: RecordedSpeeds) -> Table:
    """Tokens per second and milliseconds a pass, by the recording's own arithmetic."""
    table = Table("K", "tokens/s", "ms a pass", "of it drafting", "AL")
    for point in recording.points:
        table.add_row(
            str(point.steps),
            f"{point.tokens_per_second:.2f}",
            f"{point.pass_ms.value:.1f}",
            f"{point.draft_ms.value:.1f}",
            f"{point.acceptance_length.value:.3f}",
        )
    return table


if __name__ == "__main__":
    torch.set_num_threads(2)
    typer.run(main)
