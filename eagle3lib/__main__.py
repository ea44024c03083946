"""`python -m eagle3lib COMMAND`: each command lives in the room it belongs to."""

from __future__ import annotations

import typer

from eagle3lib.check import check
from eagle3lib.run import run

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(run)
app.command()(check)


@app.callback()
def commands() -> None:
    """The EAGLE-3 draft investigation workbook."""


if __name__ == "__main__":
    app()
