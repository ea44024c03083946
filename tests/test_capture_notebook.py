"""Notebook 00 on a tiny model: it leaves a dump that is read back, proves it, and says what to add to the case."""

from __future__ import annotations

import json

import nbformat
import pytest
from bundled import CASE
from tiny_models import COMMON, N_LAYERS, tiny_model

from eagle3lib import open_dump
from eagle3lib.run import run_notebooks


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook00")
    tiny_model("LlamaConfig", COMMON).save_pretrained(folder / "tiny")
    settings = [f"model={folder / 'tiny'}", "prompts=[[5, 9, 33], [8, 60]]", f"boundaries=[0, 2, {N_LAYERS}]"]
    code = run_notebooks(CASE, folder / "out", only="00", settings=[*settings, "new_tokens=12"])
    assert code == 0
    return folder / "out"


def test_the_dump_is_read_back_and_proved(out):
    results = json.loads((out / "results" / "00_capture_hidden_states.json").read_text(encoding="utf-8"))
    assert [(f["code"], f["severity"]) for f in results["findings"]] == [("dump.capture_proved", "ok")]
    assert 0 < results["numbers"]["own_logits"]["logprob_error"] < 0.01
    samples = list(open_dump(out / "captured"))
    assert [sample.token_ids[:2].tolist() for sample in samples] == [[5, 9], [8, 60]]
    assert results["numbers"]["tokens"] == [len(sample.token_ids) for sample in samples]
    assert str(sum(results["numbers"]["tokens"])) in results["answer"]


def test_the_page_holds_the_lines_for_the_case_and_no_progress_bar(out):
    cells = nbformat.read(out / "notebooks" / "00_capture_hidden_states.ipynb", as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "stream" or "application/vnd.jupyter.widget-view+json" in o.data]
    page = (out / "00_capture_hidden_states.html").read_text(encoding="utf-8")
    assert "[[dumps]]" in page
    assert "captured" in page
