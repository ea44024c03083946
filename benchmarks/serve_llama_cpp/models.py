"""What is served, as GGUF files in float32: the bundled target and its draft, wired right, wrong and rewired."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from source import Engine

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.ecosystems._config_ids import TOP_LEVEL
from eagle3lib.repaired_checkpoint import save_rewired
from eagle3lib.rewire import rewire
from eagle3lib.tensors import read_json


@dataclass(frozen=True)
class Served:
    """A draft as the engine gets it: which boundaries it is told to capture, and the file."""

    name: str
    slots: tuple[int, ...]
    folder: Path
    gguf: Path


def write_target(living_target: Callable, engine: Engine, work: Path) -> tuple[Path, Path]:
    """The living target as a Hugging Face folder and as GGUF, both float32; what is there is kept.

    The engine's own arithmetic on Q4_1 rounds activations to eight bits; on the dequantised weights engine and
    replay compute the same function.
    """
    folder, gguf = work / "target", work / "target.gguf"
    if not gguf.is_file():
        living = living_target()
        folder.mkdir(parents=True, exist_ok=True)
        config = living.model.config.to_dict()
        config.pop("quantization_config", None)
        config.update(_name_or_path="", dtype="float32", architectures=["LlamaForCausalLM"])
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tensors = {name: t for name, t in living.model.state_dict().items() if name != "lm_head.weight"}  # tied
        save_file({n: t.float().contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
        living.tokenizer.save_pretrained(folder)
        engine.convert(folder, "--outtype", "f32", "--outfile", gguf)
    return folder, gguf


def write_drafts(
    draft: Draft, trained: Wiring, wrong: Wiring, target: Path, engine: Engine, work: Path
) -> list[Served]:
    """The draft on its own boundaries, on the wrong ones, and rewired for those."""
    config = read_json(draft.path / "config.json")
    served = [
        Served(name, slots, work / f"draft_{name}", work / f"draft_{name}.gguf")
        for name, slots in (("right", trained.slots), ("wrong", wrong.slots), ("rewired", wrong.slots))
    ]
    for item in served:
        if item.gguf.is_file():
            continue
        shutil.rmtree(item.folder, ignore_errors=True)
        told = config | {TOP_LEVEL: list(item.slots)}
        if item.name == "rewired":
            save_rewired(rewire(draft, trained, wrong), item.folder, told)
        else:
            shutil.copytree(draft.path, item.folder)
            (item.folder / "config.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        engine.convert(item.folder, "--target-model-dir", target, "--outtype", "f32", "--outfile", item.gguf)
    return served
