"""Recorded activations: hooks on another implementation's modules, the file between, and planted faults named."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from complaints import complaint
from torch import Tensor, nn

from eagle3lib import taps
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.sample import Sample

WIRING = Wiring(toys.SLOTS, position_offset=1)  # as speculators counts positions
EXACT = 1e-4


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    """The file that users copy beside a server, loaded as they would."""
    monkeypatch.setenv("EAGLE3_RECORDING", str(tmp_path / "recording"))
    spec = importlib.util.spec_from_file_location("recorder", Path(__file__).parents[1] / "docs" / "recorder.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def served(recorder, model: nn.Module, sample: Sample, library) -> dict[str, Tensor]:
    """What the recorder writes of step 0 of a model of speculators, whose modules have the engines' names."""
    attached = recorder.attach(model, nn.Identity())
    library.run(model, sample, toys.N_LAYERS - 1)
    attached.close(sample.token_ids[1:])
    (file,) = recorder.FOLDER.iterdir()
    return taps.read_activations(file)


@pytest.fixture
def both(recorder, target_folder, tmp_path, sample, monkeypatch) -> tuple[Draft, dict[str, Tensor]]:
    """Our draft and its recording, of one step."""
    pytest.importorskip("speculators")
    library = pytest.importorskip("library")
    monkeypatch.setattr(library, "TTT_STEPS", 1)
    model = library.new_draft(target_folder, norm_before_residual=True)
    model.save_pretrained(tmp_path / "draft")
    return load_draft(tmp_path / "draft", device="cpu"), served(recorder, model, sample, library)


def table(draft: Draft, sample: Sample, recorded: dict[str, Tensor], wiring: Wiring = WIRING):
    rows = taps.common_rows(sample, recorded)
    mine = taps.record(draft, sample, wiring)[0]
    return taps.compare(taps.leading(mine, rows), taps.leading(recorded, rows), EXACT)


def test_a_recording_of_the_same_draft_agrees(both, sample):
    """Every tap that the other implementation's modules show, 1e-4."""
    draft, recorded = both
    found = table(draft, sample, recorded)
    shown = ("fused", "embed_normed", "hidden_normed", "attention", "post_attention", "mlp", "pre_norm")
    assert tuple(found.tap) == shown
    assert taps.first_mismatch(found) is None
    assert found.norm_ratio.sub(1).abs().max() < 1e-4


def with_layer(draft: Draft, **changes: object) -> Draft:
    """The draft with some of its first layer's weights changed."""
    first = replace(draft.weights.layers[0], **changes)
    return replace(draft, weights=replace(draft.weights, layers=(first,)))


FAULTS = {
    "fused": lambda d: (d, replace(WIRING, slots=(0, 3, 2))),
    "embed_normed": lambda d: (replace(d, embedding=2 * d.embedding + 1), WIRING),
    "hidden_normed": lambda d: (with_layer(d, hidden_norm=torch.ones(toys.HIDDEN)), WIRING),
    "attention": lambda d: (d, replace(WIRING, rope_theta=9.0)),
    "post_attention": lambda d: (d, replace(WIRING, norm_before_residual=False)),
    "mlp": lambda d: (with_layer(d, up=d.weights.layers[0].gate), WIRING),
}


@pytest.mark.parametrize("tap", FAULTS)
def test_the_first_tap_that_differs_is_named(tap, both, sample):
    """One fault planted before each tap: all before it agree."""
    draft, recorded = both
    changed, wiring = FAULTS[tap](draft)
    found = table(changed, sample, recorded, wiring)
    assert taps.first_mismatch(found) == tap
    assert found.differs.iloc[found.index[found.tap == tap][0] :].any()


def test_a_lost_scale_is_seen_where_cosine_is_one():
    found = taps.compare({"mlp": torch.ones(3, 4)}, {"mlp": 2 * torch.ones(3, 4)})
    assert found.cosine[0] == pytest.approx(1.0)
    assert (found.norm_ratio[0], found.max_abs[0], found.differs[0]) == (2.0, 1.0, True)


def test_nan_differs():
    found = taps.compare({"mlp": torch.ones(3, 4)}, {"mlp": torch.full((3, 4), torch.nan)})
    assert taps.first_mismatch(found) == "mlp"


def test_taps_come_in_forward_order_step_by_step(draft, sample):
    """Ten a step; what step 1 is fed is step 0's pre-norm state."""
    steps = taps.record(draft, sample, Wiring(toys.SLOTS), 3)
    assert [tuple(step) for step in steps] == [taps.TAPS] * 3
    assert torch.equal(steps[1]["fused"], steps[0]["pre_norm"][: len(steps[1]["fused"])])
    assert steps[0]["q"].shape == (len(sample.token_ids) - 1, toys.HEADS * toys.HEAD_DIM)
    assert steps[0]["logits"].shape[1] == toys.DRAFT_VOCABULARY


def test_sglang_s_hooks_drop_the_target_s_modules(recorder):
    """One list of hooks on two models: only passes that reach `hidden_norm` are written, and only from there on."""
    specs = json.loads(recorder.sglang_specs())
    assert [spec["target_modules"] for spec in specs][-1] == ["model"]
    hooks = {spec["config"]["module"]: recorder.sglang_hook(spec["config"]) for spec in specs}
    ids, target, own = torch.arange(3), torch.zeros(3, 4), torch.ones(3, 4)
    for _ in range(2):  # the target's pass: fused norms give pairs, and there is no hidden_norm
        hooks["layers.0.input_layernorm"](None, (target,), target)
        hooks["norm"](None, (target, target), (target, target))
        hooks[""](None, (ids, None, None), target)
    assert not recorder.FOLDER.exists()
    hooks["layers.0.hidden_norm"](None, (own,), own)
    hooks["layers.0.input_layernorm"](None, (own,), own)
    hooks["layers.0.self_attn.o_proj"](None, (own,), (own, None))
    hooks["norm"](None, (own, own), (own, 3 * own))
    hooks[""](None, (ids, None, None), own)
    (file,) = recorder.FOLDER.iterdir()
    found = taps.read_activations(file)
    assert set(found) == {"fused", "hidden_normed", "embed_normed", "attention", "pre_norm", "token_ids"}
    assert torch.equal(found["pre_norm"], 3 * own)


def test_vllm_s_worker_finds_the_draft(recorder):
    """`worker.model_runner.drafter.model`, called with `input_ids` by name."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Module()
            self.model.norm = nn.Identity()

        def forward(self, input_ids: Tensor, hidden_states: Tensor) -> Tensor:
            return self.model.norm(hidden_states)

    worker = recorder.VllmWorker()
    worker.model_runner = nn.Module()
    worker.model_runner.drafter = nn.Module()
    worker.model_runner.drafter.model = Whole()
    worker.record_draft()
    worker.model_runner.drafter.model(input_ids=torch.arange(3), hidden_states=torch.ones(3, 4))
    (file,) = recorder.FOLDER.iterdir()
    assert set(taps.read_activations(file)) == {"pre_norm", "token_ids"}


def test_recordings_that_cannot_be_compared(draft, sample, tmp_path):
    mine = taps.record(draft, sample, Wiring(toys.SLOTS))[0]
    complaint(lambda: taps.compare(mine, {"mlp": torch.ones(2, 3)}), "mlp", "[2, 3]")
    complaint(lambda: taps.compare(mine, {"nonsense": torch.ones(2, 3)}), "nonsense", "fused")
    complaint(lambda: taps.common_rows(sample, {}), "token_ids")
    complaint(lambda: taps.common_rows(sample, {"token_ids": sample.token_ids}), sample.name, "second token")
    file = taps.save_activations(tmp_path / "a.safetensors", {"mlp": torch.ones(2, 3)}, torch.arange(3))
    complaint(lambda: taps.read_activations(file), str(file), "one pass")


def test_a_sampled_last_token_is_left_out(sample):
    """All rows but the one whose token the dump does not hold."""
    read = torch.cat([sample.token_ids[1:10], (sample.token_ids[10:11] + 1) % toys.VOCABULARY])
    assert taps.common_rows(sample, {"token_ids": read}) == 9
