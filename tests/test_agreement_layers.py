"""The pass on drafts of other layers, against speculators' classes: Qwen3, two layers, four slots, windows, ropes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from torch.testing import assert_close

from eagle3lib import draft_head
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.rollout import chain_states
from eagle3lib.sample import Sample

pytest.importorskip("speculators", reason="the reference implementation is not installed")
library = pytest.importorskip("library", reason="the reference implementation is not installed")
from transformers import LlamaConfig, Qwen3Config  # noqa: E402

KINDS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
TEACHER = toys.N_LAYERS - 1
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
#: speculators' training counts positions from 1, and its window from the round's start.
TRAINED = {"position_offset": 1, "window_from": "start"}
FLAGS = [
    {},
    {"norm_before_fc": True, "norm_output": True},
    {"fc_norm": True, "norm_before_residual": True},
    {"norm_before_residual": True, "norm_output": True},
]


def layer(kind: str = "llama", **changes: object):
    """The layer's config: the toy's numbers, in the class of its model type."""
    return KINDS[kind](**{**toys.layer_config(), "model_type": kind, "num_hidden_layers": 1, **changes})


def steps_of(draft: Draft, sample: Sample, slots: tuple[int, ...] = toys.SLOTS, **flags: object) -> list[torch.Tensor]:
    """[R, Vd] logits of every step, by the manual pass."""
    wiring = Wiring(slots, **{**TRAINED, **flags})
    with torch.inference_mode():
        states = list(chain_states(draft, sample, wiring, library.TTT_STEPS))
        return [draft_head.logits(draft, u, draft.config.under(wiring)).cpu() for u in states]


def agreeing(
    tmp_path: Path,
    sample: Sample,
    config,
    slots: tuple[int, ...] = toys.SLOTS,
    device: str = "cpu",
    tolerance: dict = TOLERANCE,
    **flags: bool,
) -> tuple[Draft, list[torch.Tensor]]:
    """A draft saved by the library and read by us: every logit of every step within the tolerance."""
    model = library.new_draft(toys.write_target(tmp_path / "target"), layer=config, slots=slots, **flags)
    model.save_pretrained(tmp_path / "draft")
    draft = load_draft(tmp_path / "draft", device=device)
    assert draft.config.mismatches == ()
    _, logits, _ = library.run(model, sample, TEACHER, slots)
    found = steps_of(draft, sample, slots)
    assert len(found) == len(logits) == library.TTT_STEPS
    for ours, theirs in zip(found, logits, strict=True):
        assert_close(ours, theirs[: len(ours)], **tolerance)
    return draft, logits


def moved(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference of any logit of the later steps."""
    return max(float((a - b[: len(a)]).abs().max()) for a, b in zip(found[1:], expected[1:], strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(flags) or "plain")
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_llama_and_qwen3_of_one_and_two_layers(kind, n_layers, flags, device, tmp_path, sample):
    """Float32, four steps, 1e-5 relative and absolute; 1e-4 on a GPU."""
    tolerance = TOLERANCE if device == "cpu" else {"rtol": 1e-4, "atol": 1e-4}
    config = layer(kind, num_hidden_layers=n_layers)
    draft, _ = agreeing(tmp_path, sample, config, device=device, tolerance=tolerance, **flags)
    assert draft.config.n_layers == n_layers
    assert (draft.weights.layers[0].attention.q_norm is not None) == (kind == "qwen3")


@pytest.mark.parametrize("norm", [{}, {"norm_before_fc": True}, {"fc_norm": True}], ids=str)
@pytest.mark.parametrize("slots", [(0, 1, 3, 4), (2,)], ids=str)
def test_four_slots_and_one(slots, norm, tmp_path, sample):
    """Float32, 1e-5."""
    draft, _ = agreeing(tmp_path, sample, layer(), slots, **norm)
    assert draft.config.n_slots == len(slots)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_biases(kind, tmp_path, sample):
    """On q, k, v and o, every one random; 1e-5."""
    draft, _ = agreeing(tmp_path, sample, layer(kind, attention_bias=True))
    first = draft.weights.layers[0]
    assert all(x.bias is not None and x.bias.abs().min() > 0 for x in (first.attention.q, first.attention.v, first.o))


@pytest.mark.parametrize("window", [2, 7])
@pytest.mark.parametrize("types", [("sliding_attention",), ("full_attention", "sliding_attention")], ids=len)
def test_a_window_as_the_trainer_counts_it(types, window, tmp_path, sample):
    """From the round's start; the same draft counted as servers do is another one from step 1 on."""
    config = layer(num_hidden_layers=len(types), sliding_window=window, layer_types=list(types))
    draft, logits = agreeing(tmp_path, sample, config)
    assert draft.config.windows == tuple(window if t == "sliding_attention" else None for t in types)
    served = steps_of(draft, sample, window_from="query")
    assert torch.equal(served[0], steps_of(draft, sample)[0])
    assert moved(served, logits) > 0.05
    whole = replace(draft, config=replace(draft.config, windows=(None,) * len(types)))
    assert moved(steps_of(whole, sample), logits) > 0.05


ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {
        "rope_type": "longrope",
        "long_factor": [1.0, 2.0, 4.0, 8.0],
        "short_factor": [1.0] * 4,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("kind", ROPES)
def test_every_kind_of_rope(kind, tmp_path, sample):
    """A sequence longer than the original length, positions from 1; 1e-5. Unstretched, it is another draft."""
    parameters = {"rope_theta": toys.ROPE_THETA, **ROPES[kind]}
    config = layer(rope_parameters=parameters, max_position_embeddings=20)
    draft, logits = agreeing(tmp_path, sample, config)
    assert draft.config.rope.kind == kind
    plain = replace(draft, config=replace(draft.config, rope=replace(draft.config.rope, kind="default")))
    assert moved(steps_of(plain, sample), logits) > 1e-2
