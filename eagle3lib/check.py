"""`python -m eagle3lib check DRAFT`: a draft's files accounted for in seconds and in one screen.

No dump and no notebook. Exit codes: 0 no fault, 3 a fault was found, 2 a user's mistake.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from eagle3lib.check_screen import show
from eagle3lib.ecosystems import TargetShape
from eagle3lib.errors import InputError
from eagle3lib.examination import examine
from eagle3lib.findings import Severity


def check(
    draft: Annotated[Path, typer.Argument(help="The draft's folder, or its one file.")],
    target: Annotated[
        Path | None, typer.Option(help="The target's folder or GGUF file; config.json is enough.")
    ] = None,
    target_arch: Annotated[str | None, typer.Option(help="Such as DeepseekV3ForCausalLM; ids depend on it.")] = None,
    target_layers: Annotated[int | None, typer.Option(help="The target's number of blocks.")] = None,
    engine: Annotated[str | None, typer.Option(help="The engine that is to serve, such as sglang.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Such as 0.5.23.")] = None,
    server_args: Annotated[str, typer.Option(help="The server's command line, in quotes.")] = "",
    values: Annotated[bool, typer.Option("--values", help="Read the weights too, not the header alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of a screen.")] = False,
) -> None:
    """Account for a draft's tensors, flags, layer ids and vocabulary map."""
    try:
        found = examine(
            draft.expanduser(),
            target and target.expanduser(),
            TargetShape(target_layers, target_arch) if target_layers else None,
            target_arch,
            engine,
            engine_version,
            server_args,
            values,
        )
    except InputError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(escape(str(error)), style="red")
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        show(found)
    raise typer.Exit(3 if any(f.severity is Severity.FAULT for f in found.findings) else 0)
