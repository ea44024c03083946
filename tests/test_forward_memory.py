"""What the pass never builds: the embedding table, all logits at once, or a matrix of queries by chain keys."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import toys
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eagle3lib import attention, draft_head
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.rollout import rollout

T, K = 120, 5


class Made(TorchDispatchMode):
    """Every tensor that an operation gives, by shape and dtype; views are counted as if they were copies."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: set[tuple[tuple[int, ...], torch.dtype]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.tensors |= {(tuple(t.shape), t.dtype) for t in tree_leaves(result) if isinstance(t, torch.Tensor)}
        return result

    def with_numbers(self, least: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Those of at least so many numbers."""
        return [made for made in self.tensors if torch.Size(made[0]).numel() >= least]


@pytest.fixture
def sample():
    return toys.make_sample(length=T, turns=((3, T),))


def made_by(draft, sample) -> Made:
    with Made() as made:
        rollout(draft, sample, Wiring(toys.SLOTS), K)
    assert made.tensors
    return made


def test_neither_table_nor_all_logits(tmp_path, sample, monkeypatch):
    """A vocabulary of 4000 and small blocks: no tensor is as large as the table, none holds T rows of logits."""
    monkeypatch.setattr(draft_head, "HEAD_BLOCK", 16 * toys.DRAFT_VOCABULARY)
    vocabulary = 4000
    tensors = toys.draft_tensors() | {"embed_tokens.weight": torch.randn(vocabulary, toys.HIDDEN)}
    tensors["t2d"] = torch.cat([tensors["t2d"], torch.zeros(vocabulary - toys.VOCABULARY, dtype=torch.bool)])
    folder = toys.write_draft(tmp_path, tensors)
    config = json.loads((folder / "config.json").read_text())
    config["transformer_layer_config"]["vocab_size"] = vocabulary
    (folder / "config.json").write_text(json.dumps(config))
    made = made_by(load_draft(folder, device="cpu"), sample)
    assert not made.with_numbers(vocabulary * toys.HIDDEN)
    widths = [shape for shape, _ in made.tensors if shape[-1:] == (toys.DRAFT_VOCABULARY,) and len(shape) == 2]
    assert widths and max(rows for rows, _ in widths) == 16


@pytest.mark.parametrize("window", [None, 9])
def test_no_matrix_of_queries_by_keys(window, tmp_path, sample, monkeypatch):
    """With and without a window, no tensor has two dimensions of the sequence's length, at any step."""
    monkeypatch.setattr(attention, "QUERY_BLOCK", 8)
    folder = toys.write_draft(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    layer_types = ["sliding_attention"] if window else None
    config["transformer_layer_config"] |= {"sliding_window": window, "layer_types": layer_types}
    (folder / "config.json").write_text(json.dumps(config))
    draft = load_draft(folder, device="cpu")
    assert draft.config.windows == (window,)
    square = [shape for shape, _ in made_by(draft, sample).tensors if sum(n >= T - K - 2 for n in shape) > 1]
    assert not square


def mapped_file(tensor: torch.Tensor) -> str:
    """The file whose pages hold the tensor's first number, empty where that is ordinary memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(x, 16) for x in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) > 5 else ""
    return ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_an_own_embedding_stays_mapped(tmp_path):
    """The table is the file's own pages, also where the pass computes in another dtype; rows are copied."""
    folder = toys.write_draft(tmp_path)
    draft = load_draft(folder, device="cpu", dtype=torch.bfloat16)
    assert mapped_file(draft.embedding) == str(folder / "model.safetensors")
    assert mapped_file(draft.embedding.clone()) != str(folder / "model.safetensors")
    ids = torch.tensor([95, 0, 17])
    with Made() as made:
        found = draft.embed(ids)
    assert torch.equal(found, toys.draft_tensors()["embed_tokens.weight"][ids].bfloat16())
    assert not made.with_numbers(4 * toys.HIDDEN)
