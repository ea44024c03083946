"""A toy of a case met in the field: a target of Kimi's structure, a latent draft, dumps in the old list layout.

The draft was trained on [0, 3, 7] of 12 blocks with B(10) as its teacher, and its config's ids [2, 6, 9] are served by
an SGLang that adds one to each. Nothing tells the workbook so but the files themselves.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import toys
from safetensors.torch import save_file
from test_mla import YARN, LatentDraft, latent_config

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample
from eagle3lib.target import Target, load_target
from eagle3lib.training import step_counts

N_LAYERS = 12
TRAINED, SERVED, TEACHER = (0, 3, 7), (3, 7, 10), 10
STORED = (*TRAINED, TEACHER)
#: The speeds of that case, as its case.toml states them.
COST_SECTION = """
[cost]
baseline = 90.0
[[cost.points]]
tokens_per_second = 46.7
acceptance_length = 1.9
draft_tokens = 16
[[cost.points]]
tokens_per_second = 56.8
acceptance_length = 1.6
steps = 1
topk = 1
"""
IDS = [2, 6, 9]
PREFIX = "language_model."
#: How often the teacher says what the draft says, and how often the recorded token is that.
TAUGHT, OWN = 0.8, 0.6
LENGTH, TURNS, N_SAMPLES = 76, ((5, 74),), 16


def write_kimi(cache: Path) -> Path:
    """The target in a Hugging Face cache: links into blobs/, and two of 64 shards beside an index of all."""
    folder = cache / "models--toy--Kimi" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    tensors = {PREFIX + name: tensor for name, tensor in toys.target_tensors().items()}
    here = {1: [n for n in tensors if "embed_tokens" in n], 62: [n for n in tensors if "embed_tokens" not in n]}
    shards = {i: f"model-{i:05}-of-000064.safetensors" for i in range(1, 65)}
    weight_map = {name: shards[i] for i, names in here.items() for name in names}
    for block in range(N_LAYERS):  # none of which is there
        weight_map[f"{PREFIX}model.layers.{block}.mlp.experts.0.down_proj.weight_packed"] = shards[2 + block]
    weight_map["vision_tower.patch_embed.pos_emb.weight"] = shards[64]
    text = toys.layer_config() | {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    text |= {"num_hidden_layers": N_LAYERS, "rope_scaling": YARN}
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text}
    files = {"config.json": config, "model.safetensors.index.json": {"metadata": {}, "weight_map": weight_map}}
    for name, data in files.items():
        link(folder, name, json.dumps(data).encode())
    for i, names in here.items():
        part = cache / "part.safetensors"
        save_file({name: tensors[name] for name in names}, part, metadata={"format": "pt"})
        link(folder, shards[i], part.read_bytes())
        part.unlink()
    return folder


def link(folder: Path, name: str, data: bytes) -> None:
    """A file as the cache keeps it: its bytes under their hash, its name a relative link."""
    blobs = folder.parent.parent / "blobs"
    blobs.mkdir(exist_ok=True)
    blob = hashlib.sha256(data).hexdigest()
    (blobs / blob).write_bytes(data)
    (folder / name).symlink_to(Path("../../blobs") / blob)


def write_draft(folder: Path, target: Target) -> Path:
    """A latent draft that shares the target's embedding and hardly needs B(0), as trained ones do."""
    model = LatentDraft(latent_config(rope=YARN))
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.embed(torch.arange(toys.VOCABULARY)))
        model.fc.weight[:, : toys.HIDDEN] *= 0.1
        model.lm_head.weight *= 2
    return model.save(folder, eagle_config={"eagle_aux_hidden_state_layer_ids": IDS, "use_aux_hidden_state": True})


def told_sample(draft: Draft, target: Target, seed: int) -> Sample:
    """Recorded tokens that are the draft's own choice `OWN` of the time, B(0) theirs, and a teacher that says what
    the draft says `TAUGHT` of the time."""
    source = toys.generator(1000 + seed)
    sample = toys.make_sample(seed, length=LENGTH, turns=TURNS, boundaries=(), name=f"data_{seed}")
    drawn = torch.randint(0, toys.VOCABULARY, (LENGTH,), generator=source)
    own, taught = (torch.rand(LENGTH, generator=source) < share for share in (OWN, TAUGHT))
    added = [size * torch.randn(LENGTH, toys.HIDDEN, generator=source) for size in (1.5, 2.0)]
    tokens, before = drawn, None
    while before is None or not torch.equal(tokens, before):  # each token that is right stays right
        before = tokens
        embedded = target.embed(tokens)
        states = dict(zip(TRAINED, itertools.accumulate([embedded, *added]), strict=True))
        found = rollout(draft, replace(sample, token_ids=tokens, states=states), Wiring(TRAINED), 1)
        at = found.starts + 2
        tokens = tokens.index_put((at,), torch.where(own[at], found.predicted[:, 0], drawn[at]))
    # The teacher's row j says x[j + 1]: the head's row of a token, through the final norm's inverse.
    says = draft.target_ids[torch.randint(0, toys.DRAFT_VOCABULARY, (LENGTH,), generator=source)]
    says[found.starts + 1] = torch.where(taught[found.starts + 1], found.predicted[:, 0], says[found.starts + 1])
    direction = torch.nn.functional.normalize(target.head_rows(says).float(), dim=-1) / target.norm_weight
    states[TEACHER] = states[TRAINED[-1]] + 14 * direction
    return replace(sample, token_ids=tokens, states=states)


def claimed_accuracy(draft: Draft, target: Target, samples: Sequence[Sample]) -> float:
    """full_acc_0 as the trainer printed it: against B(10)."""
    return step_counts(draft, samples, Wiring(TRAINED), 1, [TEACHER], target)[TEACHER].full_acc(0).value


def write_story(folder: Path) -> Path:
    """Everything that the engineer has; returns case.toml, in which no boundary is stated."""
    target_folder = write_kimi(folder / "hub")
    target = load_target(target_folder)
    draft = load_draft(write_draft(folder / "draft", target), target, "cpu")
    samples = [told_sample(draft, target, i) for i in range(N_SAMPLES)]
    toys.write_list_dump(folder / "dump", samples, STORED)
    sections: Mapping[str, Mapping[str, object]] = {
        "[draft]": {"path": "draft", "trainer": "speculators_old"},
        "[target]": {"path": str(target_folder.relative_to(folder))},
        "[training]": {"full_acc": [round(claimed_accuracy(draft, target, samples), 3)]},
        "[[dumps]]": {"name": "training", "path": "dump", "temperature": 0.0},
        "[served]": {"engine": "sglang", "version": "0.5.12", "steps": 2},
    }
    lines = ['name = "story"']
    for section, fields in sections.items():
        lines += [section, *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
    (folder / "case.toml").write_text("\n".join(lines) + "\n")
    return folder / "case.toml"


def restated(case: Path, name: str, **fields: object) -> Path:
    """A copy beside the case with fields added: `dump_*` to the dump, `served_*` to what serves, or replaced there."""
    lines = case.read_text().splitlines()
    for field, value in fields.items():
        section, key = field.split("_", 1)
        at = lines.index({"dump": "[[dumps]]", "served": "[served]"}[section])
        end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith("[")), len(lines))
        kept = [line for line in lines[at + 1 : end] if not line.startswith(f"{key} =")]
        lines[at + 1 : end] = [*kept, f"{key} = {json.dumps(value)}"]
    new = case.with_name(f"{name}.toml")
    new.write_text("\n".join(lines) + "\n")
    return new
