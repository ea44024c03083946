"""The pass against SpecForge 0.2.0's own draft model, on its own checkpoint form.

SpecForge asks for a GPU's worth of requirements and needs none of them to import its draft model on a CPU:
`pip install --no-deps specforge==0.2.0` is enough beside torch and transformers. Its functions are decorated
with torch.compile, which wants a C++ compiler and minutes; here they run as written.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
import toys
from safetensors.torch import save_file
from torch import Tensor
from torch.testing import assert_close

from eagle3lib import draft_head
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.rollout import chain_states
from eagle3lib.sample import Sample

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # flash_attn is not there, and not wanted
    specforge = pytest.importorskip("specforge.modeling.draft.llama3_eagle", reason="specforge is not installed")
from transformers import LlamaConfig  # noqa: E402

STEPS = 4
TARGET_HIDDEN = 24  # not the draft's
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
}


def new_draft(rope: str = "default", **changes: object) -> specforge.LlamaForCausalLMEagle3:
    """SpecForge's draft with every weight random, fed states narrower than its own."""
    layer = toys.layer_config() | {"num_hidden_layers": 1, "torch_dtype": "float32"}
    config = LlamaConfig(**{**layer, "rope_parameters": {"rope_theta": toys.ROPE_THETA, **ROPES[rope]}})
    for name, value in {
        "draft_vocab_size": toys.DRAFT_VOCABULARY,
        "target_hidden_size": TARGET_HIDDEN,
        "pretraining_tp": 1,
        **changes,
    }.items():
        setattr(config, name, value)
    model = specforge.LlamaForCausalLMEagle3(config).eval()
    source = toys.generator(31)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(toys.random_norm(len(p), source) if p.ndim == 1 else toys.random_weight(*p.shape, source))
    model.d2t, model.t2d = toys.vocabulary_maps()
    return model


def saved(model: specforge.LlamaForCausalLMEagle3, folder: Path) -> Path:
    """SpecForge's serving form: flat config.json, `midlayer.` names."""
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLMEagle3"]}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def narrow_sample() -> Sample:
    """Every boundary `TARGET_HIDDEN` wide."""
    sample = toys.make_sample()
    states = {b: h[:, :TARGET_HIDDEN] for b, h in sample.states.items()}
    return Sample(sample.name, sample.token_ids, sample.loss_mask, states)


@torch.compiler.set_stance("force_eager")
@torch.inference_mode()
def theirs(model: specforge.LlamaForCausalLMEagle3, sample: Sample) -> list[Tensor]:
    """Logits of every step and pair, in the loop that its trainer runs: feedback is always the pre-norm state."""
    n = len(sample.token_ids) - 1
    tokens = torch.cat([sample.token_ids, torch.zeros(STEPS, dtype=torch.long)])
    aux = torch.cat([sample.states[b][:n] for b in toys.SLOTS], dim=-1)[None]
    hidden, cache = model.project_hidden_states(aux), [[], []]
    mask = model.prepare_decoder_attention_mask(torch.ones(1, n, dtype=torch.bool), hidden, 1, n, 0)
    logits = []
    for k in range(STEPS):
        hidden = model.backbone(
            input_embeds=model.embed_input_ids(tokens[None, 1 + k : 1 + k + n]),
            hidden_states=hidden,
            cache_hidden=cache,
            attention_mask=mask,
            position_ids=torch.arange(n)[None],
        )
        logits.append(model.compute_logits(hidden)[0])
    return logits


def ours(folder: Path, sample: Sample, **flags: object) -> list[Tensor]:
    """Logits of every step, by the manual pass."""
    draft, wiring = load_draft(folder, device="cpu"), Wiring(toys.SLOTS, **flags)
    config = draft.config.under(wiring)
    with torch.inference_mode():
        return [draft_head.logits(draft, u, config) for u in chain_states(draft, sample, wiring, STEPS)]


def furthest(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b[: len(a)]).abs().max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("fc_norm", [False, True])
@pytest.mark.parametrize("rope", ROPES)
def test_logits_equal_specforge_s(rope, fc_norm, tmp_path):
    """Float32, four steps, target narrower than the draft; 1e-5 relative and absolute."""
    model, sample = new_draft(rope, fc_norm=fc_norm), narrow_sample()
    folder = saved(model, tmp_path)
    config = load_draft(folder, device="cpu").config
    assert (config.target_hidden_size, config.input_norm) == (TARGET_HIDDEN, "slots" if fc_norm else "none")
    expected, found = theirs(model, sample), ours(folder, sample)
    assert len(found) == len(expected) == STEPS
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b[: len(a)], **TOLERANCE)


@pytest.mark.parametrize("norm_output", [False, True])
def test_the_old_meaning_of_norm_output(norm_output, tmp_path):
    """Here it says what lm_head reads, and u is fed back either way: `Wiring` states it, since no config can."""
    model, sample = new_draft(norm_output=norm_output), narrow_sample()
    folder, expected = saved(model, tmp_path), theirs(model, sample)
    found = ours(folder, sample, norm_output=False, norm_head=norm_output)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b[: len(a)], **TOLERANCE)
    as_engines_read_it = ours(folder, sample)
    if norm_output:  # fed back normed: the first step is the same, the later ones are not
        assert_close(as_engines_read_it[0], expected[0][: len(found[0])], **TOLERANCE)
        assert furthest(as_engines_read_it[1:], expected[1:]) > 0.05
    else:
        assert furthest(as_engines_read_it[:1], expected[:1]) > 0.05
