"""A target from a Hugging Face folder, as people have them: nested, tied, quantised, half downloaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3lib.dequantise import Stored, stored_matrix
from eagle3lib.errors import InputError
from eagle3lib.folders import INDEXES, checkpoint_files, name_trouble
from eagle3lib.target import Rows, Target
from eagle3lib.tensors import TensorInfo, read_headers, read_json, read_tensor
from eagle3lib.token_text import folder_texts

#: What stands before the language model's own names, by how often it is met.
PREFIXES = (
    "model.", "", "language_model.model.", "model.language_model.", "model.language_model.model.", "language_model.",
    "model.text_model.", "text_model.", "llm.model.", "thinker.model.", "transformer.",
)  # fmt: skip
HEADS = (
    "lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "model.language_model.lm_head.weight",
    "llm.lm_head.weight", "thinker.lm_head.weight", "output.weight",
)  # fmt: skip
#: Sections of config.json that hold the language model's numbers.
SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")
#: Towers and heads that have embeddings and norms of their own.
_OTHERS = re.compile(r"vision|visual|audio|image|mtp|draft|eagle|decoder_only")
#: Families whose final norm multiplies by 1 + weight.
_ONE_MORE = ("gemma", "gemma2", "gemma3", "gemma3_text")


@dataclass(frozen=True)
class _Folder:
    """A folder's shards: every name its index promises, and which of its files are there."""

    path: Path
    promised: dict[str, Path]

    def find(self, candidates: list[str], ending: str) -> str:
        """The first candidate that the folder has, else the one name with that ending outside other towers.

        Raises:
            InputError: if there is none; it lists what comes nearest.
        """
        for name in candidates:
            if name in self.promised:
                return name
        alike = [n for n in self.promised if n.endswith(ending) and not _OTHERS.search(n)]
        if len(alike) == 1:
            return alike[0]
        packed = [n for n in self.promised for c in candidates if n.startswith(c.removesuffix("weight")) and n != c]
        if packed:
            raise InputError(
                f"{candidates[0]} in {self.path} is packed ({packed[0]}), which this reader cannot turn into numbers;"
                " give a copy of the target whose embedding and head are not quantised."
            )
        near = [n for n in self.promised if n.rsplit(".", 2)[-2:] == ending.rsplit(".", 2)[-2:]]
        has = f"; it has {', '.join(sorted(near)[:4])}" if near else ""
        raise InputError(
            f"Expected the tensor {candidates[0]} in {self.path}, found none in the shards that are present{has}."
        )

    def info(self, name: str) -> TensorInfo:
        """The header entry of a promised tensor.

        Raises:
            InputError: if its shard is not there, or does not hold it.
        """
        file = self.promised[name]
        if not file.exists():
            raise InputError(
                name_trouble(file)
                or f"Expected the tensor {name} in {file}, found none in the shards that are present; copy that shard."
            )
        infos = read_headers([file])
        if name not in infos:
            raise InputError(f"The index of {self.path} promises {name} in {file.name}, which does not hold it.")
        return infos[name]


def load(path: Path) -> Target:
    """Open the folder: config.json, and the shards with embedding, final norm and head.

    Raises:
        InputError: if a needed shard, tensor or number is absent, or a tensor is packed in a way that no file tells.
    """
    raw = read_json(path / "config.json")
    config = language_part(raw)
    folder = _open(path)

    def number(name: str):
        if config.get(name) is None:
            raise InputError(f"Expected {name} in {path / 'config.json'}, found none.")
        return config[name]

    embedding_name = folder.find([p + "embed_tokens.weight" for p in PREFIXES], ".embed_tokens.weight")
    prefix = embedding_name.removesuffix("embed_tokens.weight")
    norm_name = folder.find([p + "norm.weight" for p in (prefix, *PREFIXES)], ".final_layernorm.weight")
    embedding = _matrix(folder, embedding_name, raw)
    tied = _tied(config, raw)
    norm = read_tensor(folder.info(norm_name)).float()
    rows = embedding.shape[0]
    vocabulary = int(config.get("vocab_size") or rows)
    return Target(
        path=path,
        architecture=next(iter(raw.get("architectures") or []), None),
        n_layers=int(number("num_hidden_layers")),
        hidden_size=int(number("hidden_size")),
        vocab_size=min(vocabulary, rows),
        norm_eps=float(number("rms_norm_eps")),
        rope_theta=config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta"),
        norm_weight=norm + 1 if config.get("model_type") in _ONE_MORE or config.get("use_gemma_norm") else norm,
        tied=tied,
        embedding_rows=embedding.rows,
        head_row_reader=embedding.rows if tied else _head(folder, raw),
        read_texts=lambda: folder_texts(path),
        padding_rows=max(0, rows - vocabulary),
    )


def _open(path: Path) -> _Folder:
    for index in INDEXES:
        if (path / index).is_file():
            weight_map = read_json(path / index).get("weight_map") or {}
            checkpoint_files(path)  # refuses an index that leads out of the folder
            return _Folder(path, {name: path / shard for name, shard in weight_map.items()})
    infos = read_headers([file for file in checkpoint_files(path) if file.exists() or file.is_symlink()])
    return _Folder(path, {name: info.file for name, info in infos.items()})


def language_part(raw: dict[str, Any]) -> dict[str, Any]:
    """config.json with the language model's section laid over it, however deep it lies."""
    for section in SECTIONS:
        if isinstance(inner := raw.get(section), dict):
            return {**raw, **language_part(inner)}
    return raw


def _tied(config: dict[str, Any], raw: dict[str, Any]) -> bool:
    """Whether the head is the embedding. Gemma's config leaves out what is its default."""
    said = raw.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    if said is None:
        return str(config.get("model_type", "")).startswith("gemma")
    return bool(said)


def _head(folder: _Folder, raw: dict[str, Any]) -> Rows:
    """The head's rows; that it is absent is said when a row is asked for, as a draft may need none."""
    try:
        return _matrix(folder, folder.find(list(HEADS), ".lm_head.weight"), raw).rows
    except InputError as error:
        message = str(error)

        def refuse(ids: Tensor) -> Tensor:
            raise InputError(message)

        return refuse


def _matrix(folder: _Folder, name: str, raw: dict[str, Any]) -> Stored:
    """A table by rows, dequantised where scales lie beside it."""
    stem = name.removesuffix("weight")
    beside = {n.removeprefix(stem): folder.info(n) for n in folder.promised if n.startswith(stem) and n != name}
    return stored_matrix(folder.info(name), beside, raw.get("quantization_config") or {})
