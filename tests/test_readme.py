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
    """Every option that the README shows is one of that command's."""
    shown: dict[str, set[str]] = {"run": set(), "check": set(), "repair": set()}
    for line in (line for block in blocks("") for line in block.splitlines()):
        command = next((name for name in shown if f" {name} " in line), "run")
        shown[command] |= set(re.findall(r" (--[a-z-]+)", line))
    for name, options in shown.items():
        command = [sys.executable, "-m", "eagle3lib", name, "--help"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={"COLUMNS": "200"})
        assert options
        assert all(option in done.stdout for option in options), (name, options)


def test_case_is_shown_whole() -> None:
    assert CASE.read_text().strip() in TEXT


def test_annotated_tree_names_what_is_there() -> None:
    (tree,) = [block for block in blocks("") if "eagle3lib/" in block]
    for name in re.findall(r"\b([a-z0-9_]+\.py)\b", tree):
        assert (ROOT / "eagle3lib" / name).is_file(), name


def test_picture_exists() -> None:
    for target in re.findall(r"!\[[^\]]{20,}\]\(([^)]+)\)", TEXT):
        assert (ROOT / target).is_file(), target
