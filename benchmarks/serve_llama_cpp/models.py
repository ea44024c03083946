"""What is served, as GGUF files in float32: the bundled target and its draft, as trained, rewired and refitted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from source import Engine

from eagle3lib.boundaries import Wiring
from eagle3lib.case import load_case
from eagle3lib.checkpoint import Draft
from eagle3lib.ecosystems._config_ids import TOP_LEVEL
from eagle3lib.investigation import Investigation
from eagle3lib.material import Material
from eagle3lib.recorded_serving import Mended
from eagle3lib.refit import Fit, refit
from eagle3lib.repair_command import FIT_SHARES
from eagle3lib.repaired_checkpoint import save_repaired, save_rewired
from eagle3lib.rewire import rewire
from eagle3lib.tensors import read_json

#: The case whose `train` dump a refit is fitted on, made by `prepare.py repair`.
REPAIR = Path(__file__).parent.parent.parent / "data" / "smollm2" / "repair.toml"


@dataclass(frozen=True)
class Served:
    """A draft as the engine gets it: which boundaries it is told to capture, and the file."""

    name: str
    mended: Mended
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


def write_draft(
    name: str, mended: Mended, draft: Draft, trained: Wiring, served: Wiring, target: Path, engine: Engine, work: Path
) -> Served:
    """The draft as it is, or mended, told to capture the served boundaries; what is there is kept."""
    item = Served(name, mended, served.slots, work / f"draft_{name}", work / f"draft_{name}.gguf")
    if item.gguf.is_file() and item.folder.is_dir():
        return item
    shutil.rmtree(item.folder, ignore_errors=True)
    told = read_json(draft.path / "config.json") | {TOP_LEVEL: list(served.slots)}
    if mended == "rewired":
        save_rewired(rewire(draft, trained, served), item.folder, told)
    elif mended == "refitted":
        fit = refitted(draft, trained, served)
        save_repaired(fit.draft, item.folder, told, {}, {"repair": "refit", **fit.to_json()})
    else:
        shutil.copytree(draft.path, item.folder)
        (item.folder / "config.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    engine.convert(item.folder, "--target-model-dir", target, "--outtype", "f32", "--outfile", item.gguf)
    return item


def refitted(draft: Draft, trained: Wiring, served: Wiring) -> Fit:
    """The refit that `python -m eagle3lib repair --fit-dump train` makes of `repair.toml`'s states."""
    inv = Investigation(load_case(REPAIR), "cpu")
    (train,) = (section for section in inv.case.dumps if section.name == "train")
    samples = list(inv.open(train, list(dict.fromkeys([*trained.slots, *served.slots]))))
    fit, validation = Material.of(samples).parts(FIT_SHARES)
    return refit(draft, trained, served, fit, validation)
