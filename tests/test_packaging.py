"""The lists of packages agree with each other, and the code with its linter."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from eagle3lib.results import PROJECT_ROOT

PROJECT = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(path: str) -> list[Requirement]:
    lines = (PROJECT_ROOT / path).read_text(encoding="utf-8").splitlines()
    return [Requirement(text) for line in lines if (text := line.split("#")[0].strip())]


def pins(path: str) -> dict[str, str]:
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in requirements(path)}


def environment() -> list:
    return yaml.safe_load((PROJECT_ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]


def test_every_dependency_is_pinned_within_its_specifier():
    pinned = pins("constraints.txt")
    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    for requirement in map(Requirement, PROJECT["dependencies"] + extras):
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


def test_every_dependency_says_why_it_is_there():
    text = (PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for line in text.split("\ndependencies = [")[1].split("\n]")[0].strip().splitlines():
        assert re.search(r'",\s+# \w', line), line


def test_oracles_are_pinned_to_what_was_resolved():
    pinned = pins("constraints.txt")
    assert {name: pinned[name] for name in pins("tests/oracles.txt")} == pins("tests/oracles.txt")
    assert not set(pins("tests/oracles-nodeps.txt")) & set(pinned), "pip would resolve what they ask for"


def test_every_pin_is_exact_and_none_is_cudas():
    for requirement in requirements("constraints.txt"):
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), str(requirement)
        assert not re.search("nvidia|cuda|triton|cudnn|nccl", requirement.name.lower())


def test_environment_yml_names_no_package_twice():
    conda = [item for item in environment() if isinstance(item, str)]
    (pip,) = [item["pip"] for item in environment() if isinstance(item, dict)]
    assert pip == ["-c constraints.txt", "-e ."]
    names = [re.split("[<>=]", item)[0] for item in conda]
    assert len(set(names)) == len(names)
    assert not set(names) & {Requirement(line).name for line in PROJECT["dependencies"]}


def test_python_versions_agree():
    (python,) = [item for item in environment() if isinstance(item, str) and item.startswith("python")]
    assert SpecifierSet(python.removeprefix("python")) == SpecifierSet(PROJECT["requires-python"])
    linter = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]
    assert linter["target-version"] == "py" + PROJECT["requires-python"].removeprefix(">=").replace(".", "")


def test_every_room_is_packaged():
    folders = {path.parent for path in (PROJECT_ROOT / "eagle3lib").rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff_has_nothing_to_say(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--quiet", "."], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
