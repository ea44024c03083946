"""Trains the bundled draft with speculators' own model, loss and metrics."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
from torch import Tensor
from transformers import AutoConfig

SLOTS = (0, 3, 16)
TEACHER = 30
DRAFT_VOCABULARY = 4096
TTT_STEPS = 4
PACKED_TOKENS = 512
LEARNING_RATE = 1e-3
WARMUP = 0.03  # share of the steps


@dataclass(frozen=True)
class Sequence:
    """One training sequence: tokens, which of them the target generated, and states for every token."""

    token_ids: Tensor  # [T]
    loss_mask: Tensor  # [T] bool
    slots: Tensor  # [T, 3 * H]
    teacher: Tensor  # [T, H]


def new_draft(verifier: Path, response_counts: dict[int, int]) -> Eagle3DraftModel:
    """An untrained draft on boundaries `SLOTS`, every optional norm off, its embedding and head the target's."""
    config = AutoConfig.from_pretrained(verifier)
    d2t, t2d = build_vocab_mappings_from_distribution(response_counts, DRAFT_VOCABULARY, config.vocab_size)
    config.num_hidden_layers = 1
    return Eagle3DraftModel.from_training_args(
        config,
        t2d=t2d,
        d2t=d2t,
        verifier_name_or_path=str(verifier),
        target_layer_ids=list(SLOTS),
        draft_vocab_size=DRAFT_VOCABULARY,
        norm_before_residual=False,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
        embed_requires_grad=False,
        ttt_steps=TTT_STEPS,
        draft_attn_impl="eager",
    )


def batch_of(sequences: list[Sequence]) -> dict[str, Tensor]:
    """Packed sequences in the form that the library's forward takes, shifted by its own `shift_batch`."""
    shifted = [
        shift_batch(
            {
                "input_ids": s.token_ids,
                "hidden_states": s.slots.float(),
                "verifier_last_hidden_states": s.teacher.float(),
                "loss_mask": s.loss_mask,
                "lengths": torch.tensor([len(s.token_ids)]),
                "position_ids": torch.arange(len(s.token_ids)),
            }
        )
        for s in sequences
    ]
    packed = {key: torch.cat([item[key] for item in shifted])[None] for key in shifted[0] if key != "lengths"}
    lengths = torch.cat([item["lengths"] for item in shifted])
    packed["document_ids"] = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[None]
    return packed


def loss_arguments() -> dict:
    """What the library's forward takes besides a batch."""
    return {
        "ttt_steps": TTT_STEPS,
        "ttt_step_loss_decay": 1.0,
        "loss_config": resolve_loss_config("kl_div", "eager"),
    }


def packs(lengths: list[int], order: list[int]) -> list[list[int]]:
    """Indices in the given order, grouped so that a group's tokens stay within `PACKED_TOKENS`."""
    groups: list[list[int]] = [[]]
    filled = 0
    for i in order:
        if groups[-1] and filled + lengths[i] > PACKED_TOKENS:
            groups.append([])
            filled = 0
        groups[-1].append(i)
        filled += lengths[i]
    return groups


def train(
    model: Eagle3DraftModel, load, lengths: list[int], epochs: int, state_file: Path, seed: int = 0
) -> list[dict]:
    """`epochs` passes over the sequences; resumes from `state_file`, which is written at every hundred steps.

    Args:
        load: maps an index to its `Sequence`.
        lengths: tokens of each sequence.
    """
    schedule = []
    for epoch in range(epochs):
        order = list(range(len(lengths)))
        random.Random(seed + epoch).shuffle(order)
        schedule += packs(lengths, order)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, len(schedule)))
    history, first = [], 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        history, first = state["history"], state["step"]
    native_bf16 = torch.cpu._is_avx512_bf16_supported()
    model.train()
    begin = time.monotonic()
    for step in range(first, len(schedule)):
        batch = batch_of([load(i) for i in schedule[step]])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=native_bf16):
            _, loss, metrics = model(**batch, **loss_arguments())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        scheduler.step()
        if (step + 1) % 20 == 0 or step + 1 == len(schedule):
            accuracy = float(metrics["full_acc_0_sum"] / metrics["full_acc_0_total"])
            history.append({"step": step + 1, "loss": round(float(loss), 4), "full_acc_0": round(accuracy, 4)})
            seconds = (time.monotonic() - begin) / (step + 1 - first)
            print(f"step {step + 1}/{len(schedule)} {history[-1]} {seconds:.2f} s/step", flush=True)
        if (step + 1) % 100 == 0 or step + 1 == len(schedule):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save({**state, "scheduler": scheduler.state_dict(), "history": history}, state_file)
    return history


def _rate(step: int, total: int) -> float:
    """Linear warm-up, then cosine decay to a tenth."""
    warmup = max(1, round(WARMUP * total))
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


@torch.inference_mode()
def counts(model: Eagle3DraftModel, sequences: list[Sequence]) -> dict[str, list[int]]:
    """Sums and totals behind the library's full_acc_k and cond_acc_k, one sequence at a time, float32."""
    model.eval()
    names = ("full_acc_sum", "full_acc_total", "cond_acc_sum", "cond_acc_total")
    totals = {name: [0] * TTT_STEPS for name in names}
    for sequence in sequences:
        _, _, metrics = model(**batch_of([sequence]), **loss_arguments())
        for k in range(TTT_STEPS):
            for name in names:
                kind, what = name.rsplit("_", 1)
                totals[name][k] += round(float(metrics[f"{kind}_{k}_{what}"]))
    return totals
