"""Tiny drafts in speculators' own classes: built, saved and run by the library. Imported only where it is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import toys
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from eagle3lib.boundaries import Boundary
from eagle3lib.sample import Sample

TTT_STEPS = 4


def new_draft(
    verifier: Path,
    seed: int = 11,
    *,
    layer: PretrainedConfig | None = None,
    slots: Sequence[Boundary] = toys.SLOTS,
    **flags: bool,
) -> Eagle3DraftModel:
    """A draft with every weight random, norms and biases included; of one layer of the verifier's unless `layer`."""
    config = layer or AutoConfig.from_pretrained(verifier)
    config.num_hidden_layers = config.num_hidden_layers if layer else 1
    d2t, t2d = toys.vocabulary_maps()
    model = Eagle3DraftModel.from_training_args(
        config,
        t2d=t2d,
        d2t=d2t,
        verifier_name_or_path=str(verifier),
        target_layer_ids=list(slots),
        draft_vocab_size=toys.DRAFT_VOCABULARY,
        ttt_steps=TTT_STEPS,
        draft_attn_impl="eager",
        **{"norm_before_residual": False} | flags,
    )
    source = toys.generator(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("verifier_"):
                continue
            if parameter.ndim == 1:
                parameter.copy_(toys.random_norm(len(parameter), source))
            else:
                scale = parameter.shape[1] ** 0.5 if name == "embed_tokens.weight" else 1.0
                parameter.copy_(scale * toys.random_weight(*parameter.shape, source))
    return model.eval()


def batch_of(sample: Sample, teacher: Boundary, slots: Sequence[Boundary] = toys.SLOTS) -> dict[str, Tensor]:
    """One sample in the form that the library's forward takes, shifted by its own `shift_batch`."""
    length = len(sample.token_ids)
    batch = shift_batch(
        {
            "input_ids": sample.token_ids,
            "hidden_states": torch.cat([sample.state(b) for b in slots], dim=-1),
            "verifier_last_hidden_states": sample.state(teacher),
            "loss_mask": sample.loss_mask,
            "lengths": torch.tensor([length]),
            "position_ids": torch.arange(length),
        }
    )
    lengths = batch.pop("lengths")
    return {name: value[None] for name, value in batch.items()} | {
        "document_ids": torch.zeros(1, int(lengths), dtype=torch.long)
    }


@torch.inference_mode()
def run(
    model: Eagle3DraftModel, sample: Sample, teacher: Boundary, slots: Sequence[Boundary] = toys.SLOTS
) -> tuple[list[Tensor], list[Tensor], dict]:
    """The library's forward: greedy draft ids and logits of every step, and its metrics."""
    logits: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: logits.append(output[0]))
    batch = batch_of(sample, teacher, slots)
    for name in ("hidden_states", "verifier_last_hidden_states"):
        batch[name] = batch[name].to(model.fc.weight.dtype)
    try:
        chosen, _, metrics = model(
            **batch, ttt_steps=TTT_STEPS, ttt_step_loss_decay=1.0, loss_config=resolve_loss_config("kl_div", "eager")
        )
    finally:
        hook.remove()
    return [ids[0] for ids in chosen], logits, metrics
