"""A patched config.json stands beside the original, which stays as it is, and the difference applies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import toys
from complaints import complaint
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib.case import load_case
from eagle3lib.ecosystems import ENGINES, TargetShape
from eagle3lib.investigation import Investigation
from eagle3lib.patched_config import patched_configs, unified_diff, with_settings, write_patched

LLAMA = TargetShape(30, "LlamaForCausalLM")
NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
#: As people have it: lists on one line, on several, no section at all, nothing, one line, tabs, no newline at the end.
TEXTS = {
    "one line a list": '{\n  "a": [1, 2],\n  "eagle_config": {\n    "eagle_aux_hidden_state_layer_ids": [2, 15, 27],\n'
    '    "use_aux_hidden_state": true\n  },\n  "rms_norm_eps": 1e-05\n}\n',
    "a line a number": json.dumps(
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27]}, "b": "ü"}, indent=2
    ),
    "null": '{"eagle_config": {"eagle_aux_hidden_state_layer_ids": null, "x": 1}}\n',
    "section without ids": '{\n\t"eagle_config": {\n\t\t"use_aux_hidden_state": true\n\t},\n\t"c": {"d": "}"}\n}\n',
    "null section": '{\n  "c": 1,\n  "eagle_config": null\n}\n',
    "no section": '{\n    "c": 1\n}',
    "empty": "{}",
    "empty section": '{ "eagle_config" : { } }\n',
    "Windows": '{\r\n  "c": 1\r\n}\r\n',
}


def patch(boundaries=(0, 3, 16), engine="sglang", target=LLAMA, **config):
    return ENGINES[engine].patch(config, boundaries, target)


def original(folder: Path, text: str = TEXTS["one line a list"]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(text.encode())
    return folder / "config.json"


@pytest.mark.parametrize("name", TEXTS)
def test_the_new_file_says_what_the_engine_needs_and_nothing_else_changes(name, tmp_path):
    file = original(tmp_path, TEXTS[name])
    config = json.loads(TEXTS[name])
    written = write_patched(file, patch())
    assert file.read_bytes() == TEXTS[name].encode(), "the original is as it was"
    assert written.path == tmp_path / "config.sglang.json"
    found = json.loads(written.path.read_text())
    engine = ENGINES["sglang"]
    assert engine.boundaries(engine.read_ids(found), LLAMA) == (0, 3, 16)
    found["eagle_config"].pop("eagle_aux_hidden_state_layer_ids")
    section = config.get("eagle_config") or {}
    section.pop("eagle_aux_hidden_state_layer_ids", None)
    assert found == config | {"eagle_config": section}
    assert sorted(f.name for f in tmp_path.iterdir()) == ["config.json", "config.sglang.json"], "no parts are left"


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch here")
@pytest.mark.parametrize("name", [name for name in TEXTS if name != "Windows"])
def test_the_difference_applies(name, tmp_path):
    """`patch` makes the new file of a copy of the original, byte for byte."""
    written = write_patched(original(tmp_path, TEXTS[name]), patch())
    copy = tmp_path / "copy" / "config.json"
    shutil.copytree(tmp_path, copy.parent, ignore=shutil.ignore_patterns("*sglang*"))
    run = subprocess.run(["patch", "-s", str(copy)], input=written.diff.encode(), capture_output=True, check=False)
    assert run.returncode == 0, run.stdout
    assert copy.read_bytes() == written.path.read_bytes()
    assert written.diff.startswith("--- config.json\n+++ config.sglang.json\n")


def test_the_difference_is_the_ids_alone(tmp_path):
    diff = write_patched(original(tmp_path), patch()).diff.splitlines()
    changed = [line.strip() for line in diff if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        '-    "eagle_aux_hidden_state_layer_ids": [2, 15, 27],',
        '+    "eagle_aux_hidden_state_layer_ids": [-1, 2, 15],',
    ]


def test_a_config_that_is_right_already_has_no_difference(tmp_path):
    assert write_patched(original(tmp_path), patch((3, 16, 28))).diff == ""
    text = TEXTS["a line a number"]
    assert with_settings(text, {NESTED: [2, 15, 27]}) == text, "however its numbers are set"
    assert unified_diff("a\n", "a\n", "x", "y") == ""


def test_an_earlier_copy_is_replaced_and_another_file_is_not(tmp_path):
    file = original(tmp_path)
    write_patched(file, patch((3, 16, 28)))
    assert "[-1, 2, 15]" in write_patched(file, patch()).path.read_text()
    for foreign in ("not JSON", '{"a": [1, 2]}', '{"a": [3], "eagle_config": {"use_aux_hidden_state": true}}'):
        (tmp_path / "config.sglang.json").write_text(foreign)
        complaint(lambda: write_patched(file, patch()), "config.sglang.json", "another file, which is kept")
        assert (tmp_path / "config.sglang.json").read_text() == foreign


def test_the_original_is_never_written_whatever_it_is_called(tmp_path):
    """An original that has the new name, and a link of the new name that leads to the original."""
    named = tmp_path / "named" / "config.sglang.json"
    named.parent.mkdir()
    named.write_text(TEXTS["one line a list"])
    complaint(lambda: write_patched(named, patch()), "the original config itself", "another folder")
    file = original(tmp_path / "linked")
    os.symlink(file, file.with_name("config.sglang.json"))
    complaint(lambda: write_patched(file, patch()), "the original config itself")
    os.unlink(file.with_name("config.sglang.json"))
    os.symlink(tmp_path / "elsewhere.json", file.with_name("config.sglang.json"))
    complaint(lambda: write_patched(file, patch()), "which is kept")
    assert named.read_text() == file.read_text() == TEXTS["one line a list"]
    assert not (tmp_path / "elsewhere.json").exists()
    assert write_patched(named, patch(), tmp_path / "out").path == tmp_path / "out" / "config.sglang.json"


def test_bad_folders_and_files_are_one_sentence(tmp_path):
    file = original(tmp_path)
    (tmp_path / "file").write_text("")
    complaint(lambda: write_patched(file, patch(), tmp_path / "file"), "cannot be written", "another folder")
    file.write_text("[1]")
    complaint(lambda: write_patched(file, patch()), "Expected a JSON object", "config.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    config=st.dictionaries(st.text(max_size=4) | st.just("eagle_config"), json_values, max_size=4),
    indent=st.sampled_from([None, 0, 1, 2, "\t"]),
    ascii_only=st.booleans(),
)
def test_any_config_keeps_all_but_what_is_set(config, indent, ascii_only):
    text = json.dumps(config, indent=indent, ensure_ascii=ascii_only)
    found = json.loads(with_settings(text, {NESTED: [-1, 2], "num_aux_hidden_states": 2}))
    section = config.get("eagle_config")
    section = section if isinstance(section, dict) else {}
    expected = config | {"eagle_config": section | {NESTED.split(".")[1]: [-1, 2]}, "num_aux_hidden_states": 2}
    assert found == expected


def case(folder: Path, served: str = "") -> Investigation:
    toys.write_draft(folder / "draft")
    toys.write_target(folder / "target")
    text = f'[draft]\npath = "draft"\n[target]\npath = "target"\n{served}'
    (folder / "case.toml").write_text(text)
    return Investigation(load_case(folder / "case.toml"), "cpu")


def test_every_engine_of_a_case_gets_its_file(tmp_path):
    """TensorRT-LLM takes its ids as an argument; a target of 5 blocks wired [0, 2, 3] is within the others' reach."""
    inv = case(tmp_path)
    before = (tmp_path / "draft" / "config.json").read_bytes()
    written = {p.patch.engine: p for p in patched_configs(inv, toys.SLOTS)}
    assert set(written) == {"llama_cpp", "sglang", "vllm", "vllm_v1_runner"}
    for name, found in written.items():
        assert found.path == tmp_path / "draft" / f"config.{name}.json"
        engine = ENGINES[name]
        assert engine.boundaries(engine.read_ids(json.loads(found.path.read_text())), inv.shape) == toys.SLOTS
    assert (tmp_path / "draft" / "config.json").read_bytes() == before
    assert written["vllm"].stops == () and "no code for speculators' nested config" in written["sglang"].stops[0]
    again = patched_configs(inv, toys.SLOTS, tmp_path / "out")
    assert {p.path.parent for p in again} == {tmp_path / "out"}


def test_the_serving_engine_s_file_is_made_of_what_it_was_given(tmp_path):
    """And a version that cannot capture a boundary gets none."""
    original(tmp_path / "served")
    served = '[served]\nengine = "sglang"\nversion = "{}"\nconfig = "served/config.json"\n'
    first, *_ = patched_configs(case(tmp_path, served.format("0.5.23")), toys.SLOTS)
    assert first.path == tmp_path / "served" / "config.sglang.json"
    assert json.loads(first.path.read_text())["a"] == [1, 2]
    older = patched_configs(case(tmp_path, served.format("0.5.21")), toys.SLOTS)
    assert "sglang" not in {p.patch.engine for p in older}
