"""The README's claims that a machine can check: its code runs, its options exist, its paths are there."""

from __future__ import annotations

import re
import subprocess
import sys

from bundled import CASE, ROOT

TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, "" for those of none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


def test_python_example_runs() -> None:
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]\n", done.stdout)


def test_options_of_the_commands_exist() -> None:
    """Every option that the README shows is one of the command line's."""
    command = [sys.executable, "-m", "eagle3lib", "run", "--help"]
    known = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={"COLUMNS": "200"}).stdout
    shown = {
        option for block in blocks("") for line in block.splitlines() for option in re.findall(r" (--[a-z-]+)", line)
    }
    assert shown
    assert all(option in known for option in shown), shown


def test_case_is_shown_whole() -> None:
    assert CASE.read_text().strip() in TEXT


def test_annotated_tree_names_what_is_there() -> None:
    (tree,) = [block for block in blocks("") if "eagle3lib/" in block]
    for name in re.findall(r"\b([a-z0-9_]+\.py)\b", tree):
        assert (ROOT / "eagle3lib" / name).is_file(), name


def test_picture_exists() -> None:
    for target in re.findall(r"!\[[^\]]{20,}\]\(([^)]+)\)", TEXT):
        assert (ROOT / target).is_file(), target
