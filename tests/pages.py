"""Markdown pages for tests: their blocks, the commands in them, and the script that writes some of them."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import typer
from bundled import ROOT

from eagle3lib.__main__ import app

sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402
from finding_calls import findings_made  # noqa: E402

__all__ = ["PAGES", "SCRIPT_COMMANDS", "anchors", "blocks", "commands", "findings_made", "generate", "parsed"]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: What `run_all.sh` does itself; any other first word is a command of the library.
SCRIPT_COMMANDS = {"test", "lab"}


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, "" for those of none; indentation is taken off."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", body, flags=re.MULTILINE) for indent, name, body in found if name == language]


def commands(text: str) -> list[list[str]]:
    """Every command line of the blocks without a language and of those in bash, as words, comments left out."""
    lines = "\n".join(blocks(text, "") + blocks(text, "bash")).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines if re.match(r"(\./|python |pip |conda )", line.strip())]
    return [words for words in found if words]


def parsed(words: list[str]) -> str | None:
    """The name of the library's command that these words call, its options parsed; None where another is called.

    Raises:
        typer's UsageError: for an option that the command lacks, or a value that it refuses.
    """
    if words[0] == "./run_all.sh":
        rest = words[1:]
        if rest[:1] and rest[0] in SCRIPT_COMMANDS:
            return None
        if not rest or rest[0].startswith("-"):
            rest = ["run", *rest]
    elif words[:3] == ["python", "-m", "eagle3lib"]:
        rest = words[3:]
    else:
        return None
    command = typer.main.get_command(app).commands[rest[0]]
    if "--help" not in rest:
        command.make_context(rest[0], rest[1:])
    return rest[0]


def slug(heading: str) -> str:
    """A heading's anchor as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Every heading's anchor."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}
