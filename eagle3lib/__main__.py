"""`python -m eagle3lib COMMAND`: each command lives in the room it belongs to."""

from __future__ import annotations

import sys

import typer

from eagle3lib.check import check
from eagle3lib.new_command import new

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def commands() -> None:
    """The EAGLE-3 draft investigation workbook."""


if sys.argv[1:2] not in (["check"], ["new"]):  # whose answer would come seconds later behind Jupyter's imports
    from eagle3lib.repair_command import repair
    from eagle3lib.run import run

    app.command()(run)
    app.command()(repair)
app.command()(new)
app.command()(check)


if __name__ == "__main__":
    app()
