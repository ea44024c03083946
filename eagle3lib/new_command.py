"""`python -m eagle3lib new --draft DRAFT`: the first case.toml of an investigation, from what there is.

Nothing is asked: what was guessed stands in the file with its reason, what is missing is listed with what it would
allow. Exit codes: 0 written, 2 a user's mistake.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from eagle3lib import ecosystems
from eagle3lib.case import ServedSection, TrainingSection, load_case
from eagle3lib.errors import InputError
from eagle3lib.findings import quantity
from eagle3lib.gaps import gaps, lacks_weights
from eagle3lib.new_case import case_lines
from eagle3lib.results import PROJECT_ROOT
from eagle3lib.survey import Survey, survey


def new(
    draft: Annotated[Path, typer.Option(help="The draft's folder as trained, or its one file.")],
    dump: Annotated[list[Path] | None, typer.Option(help="A folder of recorded hidden states; repeatable.")] = None,
    target: Annotated[Path | None, typer.Option(help="The target's folder or GGUF file.")] = None,
    engine: Annotated[str | None, typer.Option(help="The engine that serves, such as sglang.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Such as 0.5.23.")] = None,
    server_config: Annotated[Path | None, typer.Option(help="The draft's config.json as served.")] = None,
    server_log: Annotated[list[Path] | None, typer.Option(help="A log of the server; repeatable.")] = None,
    server_flags: Annotated[str | None, typer.Option(help="The server's command line, in quotes.")] = None,
    training_record: Annotated[Path | None, typer.Option(help="The trainer's counts or accuracies, JSON.")] = None,
    out: Annotated[Path, typer.Option(help="The case to write.")] = Path("case.toml"),
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
) -> None:
    """Write a commented case.toml from what there is, and say what is missing."""
    out = out.expanduser()
    try:
        if out.exists() and not (force and out.is_file()):
            raise InputError(f"{out} exists already; give another --out" + (", or --force." if out.is_file() else "."))
        served = _served(engine, engine_version, server_config, server_log, server_flags)
        training = TrainingSection(record=_file(training_record, "--training-record"))
        seen = survey(
            draft.expanduser(), [path.expanduser() for path in dump or []], target and target.expanduser(), training,
            served,
        )  # fmt: skip
        text = case_lines(seen, out)
        _write(out, text)
        load_case(out)
    except InputError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(escape(str(error)), style="red")
        raise typer.Exit(2) from None
    _show(seen, out, Console(highlight=False, soft_wrap=True))


def _write(out: Path, text: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror or error}); give another --out.") from None


def _file(path: Path | None, option: str) -> Path | None:
    """A file given by an option, its path whole."""
    if path is None:
        return None
    if not (path := path.expanduser()).is_file():
        raise InputError(f"Expected a file at {path} ({option}), found {'a folder' if path.is_dir() else 'nothing'}.")
    return Path(os.path.abspath(path))


def _served(
    engine: str | None, version: str | None, config: Path | None, logs: list[Path] | None, flags: str | None
) -> ServedSection | None:
    """What the options say of the server.

    Raises:
        InputError: if they say something of a server but not which, or a file is not there.
    """
    given = {"version": version, "config": _file(config, "--server-config")}
    given |= {"launch": flags, "logs": tuple(_file(path, "--server-log") for path in logs or [])}
    given = {name: value for name, value in given.items() if value}
    if engine is None:
        if given:
            raise InputError(f"Expected --engine beside what was said of the server ({', '.join(given)}), found none.")
        return None
    return ServedSection(engine=ecosystems.engine(engine).name, **given)


def _show(seen: Survey, out: Path, console: Console) -> None:
    """What was found, what is missing, and the next command."""
    inv = seen.investigation
    console.print(f"Draft   {escape(inv.checkpoint.dialect)}, {quantity(inv.pass_config.n_slots, 'slot')} of fc")
    for dump in seen.dumps:
        state = "ready" if dump.usable else "left out until its lines are filled in"
        console.print(
            f"Dump    {escape(dump.section.name)}: {escape(dump.label)}, {quantity(dump.n_files, 'file')}; {state}"
        )
    console.print(f"Wrote   {escape(str(out))}; guesses and their reasons stand in it as comments.")
    if missing := gaps(seen):
        console.print("Missing, and what each would allow, by notebook:", style="bold")
    for gap in missing:
        console.print(f"  {escape(gap.what)} ({escape(gap.give)})\n      {escape(gap.allows)}")
    only = "" if seen.usable and not lacks_weights(seen) else " --only 01" + ",02" * bool(seen.usable)
    if only and seen.case.served and seen.case.served.logs:
        only += ",05"  # what the logs say stands alone
    script = os.path.join(os.curdir, os.path.relpath(PROJECT_ROOT / "run_all.sh"))  # in whatever environment suffices
    console.print(f"Next    {escape(shlex.quote(script))} --case {escape(shlex.quote(str(out)))}{only}")
