"""Trees against the functions with which SGLang itself grows and cuts them, on the same draft.

They are taken one by one from the installed package's files, which want a GPU's libraries to be imported whole:
`pip install --no-deps sglang==0.5.23` is enough, or its unpacked wheel on PYTHONPATH. EAGLE is no package.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toys
import trees

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.sample import Sample
from eagle3lib.tree import tree_rollout
from eagle3lib.tree_shapes import TreeShape

spec = find_spec("sglang")
if spec is None:
    pytest.skip("sglang is not installed", allow_module_level=True)
library = pytest.importorskip("library", reason="the reference implementation is not installed")

NAMES = {
    "utils/common.py": ["fast_topk"],
    "speculative/spec_utils.py": ["_select_top_k_tokens_first", "_select_top_k_tokens_later", "select_top_k_tokens"],
    "speculative/eagle_utils.py": ["organize_draft_results"],
}
SHAPES = [(3, 4, 8), (4, 3, 16), (5, 2, 6), (1, 4, 5), (3, 4, 37), (4, 1, 5), (5, 5, 24), (4, 5, 40)]


@pytest.fixture(scope="module")
def engine() -> SimpleNamespace:
    """The engine's own functions, undecorated: compiled or not they compute the same."""
    names = {"torch": torch, "maybe_detect_oob": lambda *args: None}
    folder = Path(spec.submodule_search_locations[0]) / "srt"
    for file, wanted in NAMES.items():
        body = ast.parse((folder / file).read_text()).body
        functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        for name in wanted:
            function = functions[name]
            function.decorator_list = []
            function.returns = None
            for argument in function.args.args:
                argument.annotation = None
            exec(compile(ast.Module([function], []), file, "exec"), names)
    return SimpleNamespace(**names)


def served(engine: SimpleNamespace, round_: trees.LibraryRound, steps: int, topk: int, draft_tokens: int) -> set:
    """The paths of the engine's tree. A place of the beam has its own key cache, which no step reorders."""
    columns = ([], [], [])  # scores, tokens, parents
    chances, ids = engine.fast_topk(round_.root().exp()[None], topk, -1)
    tokens, hidden, scores = round_.target_ids[ids], round_.fed_back[-1:], None
    for i in range(steps):
        inputs, hidden, scores, info = engine.select_top_k_tokens(i, chances, tokens, hidden, scores, topk)
        for column, part in zip(columns, info, strict=True):
            column.append(part)
        if i == steps - 1:
            break
        first = len(round_.ids)
        for place, token in enumerate(inputs.tolist()):
            own = {rows[place] for rows in round_.at_place} | {first + place}
            round_.sees.append(set(range(round_.prefix)) | own)
            round_.ids.append(token)
            round_.positions.append(round_.prefix + i)
        round_.hidden = torch.cat([round_.hidden, hidden])
        round_.at_place.append(list(range(first, first + topk)))
        chances, ids = engine.fast_topk(round_.run(first).exp(), topk, -1)
        tokens, hidden = round_.target_ids[ids], round_.fed_back[first:]
    parents, slots, tokens = engine.organize_draft_results(*columns, draft_tokens)
    by_slot: dict[int, trees.Path] = {}
    for slot, token in zip(slots[0].tolist(), tokens[0].tolist(), strict=True):
        place = slot // topk  # of the parent, in the list of all beams; 0 is the root
        by_slot[slot] = (*(by_slot[int(parents[0, place])] if place else ()), token)
    return set(by_slot.values())


def differing(engine: SimpleNamespace, model, folder: Path, sample: Sample, shape: TreeShape, draft_tokens: int) -> int:
    """Of the sample's 20 starts, how many trees are not the engine's."""
    model.save_pretrained(folder)
    aux = torch.cat([sample.state(b) for b in toys.SLOTS], dim=-1)
    found = tree_rollout(load_draft(folder, device="cpu"), sample, Wiring(toys.SLOTS), shape)
    assert len(found.starts) == 20
    count = 0
    for row, t in enumerate(found.starts.tolist()):
        round_ = trees.LibraryRound(model, aux[: t + 1], sample.token_ids[1 : t + 2].tolist(), "places")
        with torch.inference_mode():
            expected = served(engine, round_, shape.levels, shape.topk, draft_tokens)
        count += set(trees.paths(found, row)) != expected
    return count


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize(("steps", "topk", "draft_tokens"), SHAPES)
def test_trees_equal_those_of_sglang_s_functions(
    engine, steps, topk, draft_tokens, output, target_folder, tmp_path, sample
):
    """The same nodes from every start."""
    model = library.new_draft(target_folder, norm_output=output)
    shape = TreeShape.sglang(steps, topk, draft_tokens)
    assert differing(engine, model, tmp_path, sample, shape, draft_tokens) == 0


def test_keys_of_ancestors_give_other_trees(engine, target_folder, tmp_path, sample):
    """The comparison has teeth: a few trees of a wide beam differ where branches see their own ancestors' keys."""
    shape = replace(TreeShape.sglang(5, 5, 24), own_keys="ancestors")
    assert differing(engine, library.new_draft(target_folder), tmp_path, sample, shape, 24) > 0
