"""Dumps in every layout, written as their own writers write them.

Each writer takes samples that hold every boundary of the tiny target and `FINAL_NORMED`, and returns what a reader
must give back: the folder, and the boundaries in stored order. The lines in question are those of the writers named
in `eagle3lib.ecosystems.*_dumps`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import toys
from safetensors.torch import save_file

from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.own_layout import write_sample
from eagle3lib.sample import Sample
from eagle3lib.turns import TurnRule

N = toys.N_LAYERS
SLOTS = (0, 2, 3)
EVERY = (*range(N + 1), FINAL_NORMED)
PROMPT = 6
#: Where the responses of `samples` begin, for layouts without a mask.
RULE = TurnRule(prompt_length=PROMPT)


def samples(n: int = 3, dtype: torch.dtype = torch.bfloat16) -> list[Sample]:
    """Samples of one response each, of different lengths, states as trainers store them."""
    made = [toys.make_sample(60 + i, length=20 + i, turns=((PROMPT, 20 + i),), boundaries=EVERY) for i in range(n)]
    return [replace(s, states={b: h.to(dtype) for b, h in s.states.items()}) for s in made]


def stack(sample: Sample, boundaries: Sequence[Boundary], dim: int = 1) -> torch.Tensor:
    """States on an axis of their own."""
    return torch.stack([sample.states[b] for b in boundaries], dim=dim)


def beside(sample: Sample, boundaries: Sequence[Boundary]) -> torch.Tensor:
    """States concatenated on the last axis."""
    return torch.cat([sample.states[b] for b in boundaries], dim=-1)


def current(folder: Path, given: Sequence[Sample]) -> tuple[Boundary, ...]:
    toys.write_current_dump(folder, given, (*SLOTS, N))
    return (*SLOTS, N)


def listed(folder: Path, given: Sequence[Sample]) -> tuple[Boundary, ...]:
    toys.write_list_dump(folder, given, (*SLOTS, N))
    return (*SLOTS, N)


def vllm(folder: Path, given: Sequence[Sample]) -> tuple[Boundary, ...]:
    folder.mkdir()
    for i, s in enumerate(given):
        file = folder / f"cmpl-{i}f3a-0.safetensors"
        save_file({"hidden_states": stack(s, (*SLOTS, N)), "token_ids": s.token_ids}, file)
        file.with_name(file.name + ".lock").touch()
    return (*SLOTS, N)


def specforge(folder: Path, given: Sequence[Sample], packed: bool = False) -> tuple[Boundary, ...]:
    for i, s in enumerate(given):
        part = folder / ("rows_0-2" if i < 2 else "rows_2-4")
        part.mkdir(parents=True, exist_ok=True)
        data = {
            "input_ids": s.token_ids,
            "loss_mask": s.loss_mask.long(),
            "hidden_state": s.states[FINAL_NORMED].clone().unsqueeze(0),
            "aux_hidden_state": beside(s, SLOTS).clone().unsqueeze(0),
        }
        if packed:
            with gzip.open(part / f"data_{i}.ckpt.gz", "wb") as out:
                torch.save(data, out)
        else:
            torch.save(data, part / f"data_{i}.ckpt")
    return (*SLOTS, FINAL_NORMED)


def specforge_packed(folder: Path, given: Sequence[Sample]) -> tuple[Boundary, ...]:
    return specforge(folder, given, packed=True)


def modelopt(folder: Path, given: Sequence[Sample], **more: object) -> tuple[Boundary, ...]:
    folder.mkdir()
    for i, s in enumerate(given):
        data = {
            "input_ids": s.token_ids,
            "hidden_states": s.states[FINAL_NORMED],
            "aux_hidden_states": beside(s, SLOTS),
            "loss_mask": s.loss_mask.long(),
            "conversation_id": f"conversation-{i}",
        }
        torch.save(data | more, folder / f"conversation-{i}.pt")
    return (*SLOTS, FINAL_NORMED)


def tensorrt_llm(
    folder: Path, given: Sequence[Sample], key: str = "aux_hidden_states", with_last: bool = False
) -> tuple[Boundary, ...]:
    folder.mkdir()
    saved = []
    for i, s in enumerate(given, start=1):
        data = {"id": i, "input_ids": s.token_ids, "hidden_state": s.states[FINAL_NORMED].clone()}
        data[key] = beside(s, (*SLOTS, FINAL_NORMED) if with_last else SLOTS)
        saved.append(data)
        if i % 2 == 0 or i == len(given):  # write_interval = 2
            torch.save(saved, folder / f"dp_0_{i}.pt")
            saved = []
    return (*SLOTS, FINAL_NORMED)


def nemo(folder: Path, given: Sequence[Sample], topk: int = 0) -> tuple[Boundary, ...]:
    """What is stored is shifted: ids, mask and probabilities one to the left, zeros in the last place."""
    folder.mkdir()
    length = max(len(s.token_ids) for s in given) + 2
    ids = sorted(range(1, toys.VOCABULARY, 3))
    manifest = {
        "format_version": 1, "aux_layer_ids": [1, 2, 4], "selected_token_ids": ids, "num_samples": len(given),
        "shard_size": 2, "seq_length": length, "target_probs_topk": topk, "draft_vocab_size": len(ids),
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    save_file({"weight": torch.zeros(4, 4)}, folder / "target_embeddings.safetensors")
    rows = []
    for s in given:
        n = len(s.token_ids)
        probs = full_probs(s, len(ids))
        row = {
            "input_ids": padded(shifted(s.token_ids), length),
            "attention_mask": padded(torch.ones(n, dtype=torch.long), length),
            "loss_mask": padded(shifted(s.loss_mask.long()), length),
            "aux_hidden_states": padded(beside(s, (2, 3, 5)), length),
            "position_mask": torch.zeros(length, 1, dtype=torch.bool),
        }
        if topk:
            values, places = padded(shifted(probs), length).topk(topk, dim=-1)
            row |= {"target_probs_values": values, "target_probs_indices": places.int()}
        else:
            row["target_probs"] = padded(shifted(probs), length)
        rows.append(row)
    for shard, start in enumerate(range(0, len(rows), 2)):
        batch = rows[start : start + 2]
        tensors = {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
        save_file(tensors, folder / f"shard-{shard:06d}.safetensors")
    return (2, 3, 5)


def full_probs(sample: Sample, n: int) -> torch.Tensor:
    """The teacher's distribution after each token [T, n]: some, made from the last state."""
    return sample.states[N].float()[:, :1].mul(torch.arange(n) / n).softmax(-1)


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """One to the left."""
    return torch.cat([tensor[1:], torch.zeros_like(tensor[:1])])


def padded(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Zeros on the right."""
    return torch.cat([tensor, tensor.new_zeros(length - len(tensor), *tensor.shape[1:])])


def sglang(folder: Path, given: Sequence[Sample], boundaries: Sequence[Boundary] = (FINAL_NORMED,)):
    """The prompt's rows as one list, then one row a generated token but the last."""
    folder.mkdir()
    lines = []
    for s in given:
        rows = beside(s, boundaries).float()[: len(s.token_ids) - 1]
        meta = {
            "id": "8a1c", "prompt_tokens": PROMPT, "completion_tokens": len(s.token_ids) - PROMPT,
            "hidden_states": [rows[:PROMPT].tolist(), *rows[PROMPT:].tolist()],
        }  # fmt: skip
        ids = s.token_ids.tolist()
        lines.append({"text": "", "input_ids": ids[:PROMPT], "output_ids": ids[PROMPT:], "meta_info": meta})
    (folder / "responses.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return tuple(boundaries)


def huggingface(folder: Path, given: Sequence[Sample]) -> tuple[Boundary, ...]:
    """As `torch.save({"input_ids": ..., "hidden_states": output.hidden_states})`."""
    folder.mkdir()
    for i, s in enumerate(given):
        states = tuple(s.states[b].unsqueeze(0) for b in HF)
        data = {"input_ids": s.token_ids.unsqueeze(0), "hidden_states": states, "loss_mask": s.loss_mask}
        torch.save(data, folder / f"prompt_{i}.pt")
    return HF


HF = (*range(N), FINAL_NORMED)


def own(folder: Path, given: Sequence[Sample]) -> tuple[Boundary, ...]:
    for i, s in enumerate(given):
        states = {b: s.states[b] for b in (N, *SLOTS, FINAL_NORMED)}
        notes = {"temperature": "0.0", "dtype_run": "float32"}
        write_sample(folder, i, s.token_ids, s.loss_mask, states, metadata=notes)
    return (*SLOTS, N, FINAL_NORMED)


Writer = Callable[[Path, Sequence[Sample]], tuple[Boundary, ...]]
#: Layout's name → its writer; a second writer of a layout has a word behind its name.
WRITERS: dict[str, Writer] = {
    "speculators": current, "speculators-list": listed, "vllm": vllm, "specforge": specforge,
    "specforge gz": specforge_packed, "modelopt": modelopt, "tensorrt_llm": tensorrt_llm, "nemo": nemo,
    "sglang": sglang, "huggingface": huggingface, "eagle3lib": own,
}  # fmt: skip
