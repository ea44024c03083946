"""Which files of a folder are the weights, and what a folder is that holds none of the kind wanted."""

from __future__ import annotations

import json
import re
from pathlib import Path

from eagle3lib.errors import InputError

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
#: Names of the one weight file, the preferred first.
SINGLE = ("model.safetensors", "pytorch_model.bin", "model.pt")
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.(safetensors|bin)$")
#: vLLM's sharded state, Megatron's and DeepSpeed's ranks, TensorRT-LLM's engines' weights.
_RANK = re.compile(r"(^|[-_])(mp_rank_|tp_?|rank[-_]?)\d+([-_.]|$)", re.IGNORECASE)
_STATE = re.compile(r"(optimizer|scheduler|training_state|trainer_state|rng_state|random_states|zero_pp_rank)")


def checkpoint_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint folder: those its index names, else the one file, else its shards.

    Raises:
        InputError: if there is none, if the index names a file outside the folder, if a shard is missing, or if
            the folder is a training state, a sharded distributed checkpoint or one rank's part.
    """
    for name in INDEXES:
        if (folder / name).is_file():
            return _indexed(folder, folder / name)
    files = sorted(p for p in folder.iterdir() if p.suffix in {".safetensors", ".bin", ".gguf", ".pt", ".pth"})
    if trouble := _no_checkpoint(folder, files):
        raise InputError(trouble)
    weights = [p for p in files if not _STATE.search(p.name) and p.name != "training_args.bin"]
    by_name = {p.name: p for p in weights}
    for name in SINGLE:
        if name in by_name:
            return [by_name[name]]
    for suffix in (".safetensors", ".gguf", ".bin"):
        if chosen := [p for p in weights if p.suffix == suffix]:
            _all_shards(folder, chosen)
            return chosen
    found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
    raise InputError(f"Expected a .safetensors file in {folder}, found {found}.")


def _indexed(folder: Path, index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values()))
    except (ValueError, RecursionError, AttributeError) as error:
        raise InputError(f"{index} is not an index of shards: {error}.") from None
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"{index} names the shard {name!r}, which is outside the folder; refused.")
    return [folder / name for name in names]


def _all_shards(folder: Path, files: list[Path]) -> None:
    """Complain where `model-00001-of-00003` and its like are not all there."""
    found = {int(m[1]): int(m[2]) for p in files if (m := _SHARD.search(p.name))}
    if found and (missing := set(range(1, max(found.values()) + 1)) - found.keys()):
        numbers = ", ".join(map(str, sorted(missing)))
        raise InputError(f"{folder} lacks shard {numbers} of {max(found.values())}; copy the missing files too.")


def _no_checkpoint(folder: Path, files: list[Path]) -> str | None:
    """One sentence on a folder whose weights must be merged first, or None."""
    shards = [p for p in (*folder.glob("*.distcp"), *folder.glob("*/*.distcp"))]
    if shards:
        where = shards[0].parent
        return (
            f"{where} holds the shards of a distributed checkpoint (.distcp); merge them with `python -m"
            f" torch.distributed.checkpoint.format_utils dcp_to_torch {where} pytorch_model.bin` and give the folder"
            " that has the result and config.json."
        )
    named = {p.name for p in files}
    if not named & set(SINGLE):
        ranks = [p.name for p in files if _RANK.search(p.stem)] or [p.name for p in folder.glob("mp_rank_*")]
        if ranks:
            return (
                f"{folder} holds one file a tensor-parallel rank ({', '.join(sorted(ranks)[:3])}): each has a part of"
                " every matrix; export it again with the trainer's own conversion to Hugging Face's form, which joins"
                " q, k, v, gate, up and the head by rows, o and down by columns."
            )
        states = sorted(p.name for p in folder.iterdir() if _STATE.search(p.name))
        if states and not [p for p in files if p.suffix in {".safetensors", ".gguf"} and not _STATE.search(p.name)]:
            return (
                f"{folder} is a training state ({', '.join(states[:3])}) without exported weights; export the draft"
                " with the trainer's own command, such as SpecForge's to_sglang or `zero_to_fp32.py` for DeepSpeed."
            )
    return None


def name_trouble(file: Path) -> str | None:
    """Why a path that is no file is none, where it is more than a wrong path: a dangling symbolic link."""
    if file.is_symlink() and not file.exists():
        return (
            f"{file} is a link to {file.readlink()}, which is not there; copy the folder with its links followed"
            " (cp -rL), or download it again."
        )
    return None
