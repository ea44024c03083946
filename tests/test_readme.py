"""The README's claims that a machine can check: its code runs, its commands parse, its paths are there."""

from __future__ import annotations

import re
import subprocess
import sys

from bundled import ROOT
from pages import SCRIPT_COMMANDS, blocks, commands, parsed

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_example_runs() -> None:
    (code,) = blocks(TEXT, "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]\n", done.stdout)


def test_every_command_is_shown() -> None:
    """The quick start, and each command of the library once."""
    shown = commands(TEXT)
    assert shown[:3] == [["./run_all.sh"], ["./run_all.sh", "test"], ["./run_all.sh", "lab"]]
    assert {parsed(words) for words in shown} == {None, "run", "check", "new", "repair"}


def test_the_script_s_own_commands_are_its_cases() -> None:
    script = (ROOT / "run_all.sh").read_text(encoding="utf-8")
    assert set(re.findall(r"^  (\w+)\) ", script, flags=re.MULTILINE)) == SCRIPT_COMMANDS


def test_every_notebook_has_a_row() -> None:
    rows = re.findall(r"^\| (\d\d) ", TEXT, flags=re.MULTILINE)
    assert sorted(rows) == sorted(path.name[:2] for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def test_picture_exists() -> None:
    for target in re.findall(r"!\[[^\]]{20,}\]\(([^)]+)\)", TEXT):
        assert (ROOT / target).is_file(), target


def test_every_page_of_the_documentation_is_linked() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name}" in TEXT, page.name
