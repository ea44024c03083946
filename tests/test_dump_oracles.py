"""The libraries' own readers and writers against ours, on the same files."""

from __future__ import annotations

import pytest
import torch
import toys
import written

from eagle3lib.axes import Known
from eagle3lib.boundaries import FINAL_NORMED
from eagle3lib.dumps import layout_boundaries, open_dump
from eagle3lib.ecosystems import LayerIds, Origin, TargetShape, trainer

KNOWN = Known(hidden_size=toys.HIDDEN)


@pytest.mark.parametrize("packed", [False, True], ids=["ckpt", "gz"])
def test_specforge_reads_its_files_as_we_do(packed, tmp_path):
    """specforge 0.2.0: what its trainer takes as `hidden_state` is our slots side by side, its `target` our last."""
    store = pytest.importorskip("specforge.runtime.data_plane.feature_store")
    data = pytest.importorskip("specforge.algorithms.eagle3.data")
    boundaries = written.specforge(tmp_path / "dump", written.samples(), packed)
    files = sorted((tmp_path / "dump").rglob("data_*"))
    for file, ours in zip(files, open_dump(tmp_path / "dump", boundaries, known=KNOWN), strict=True):
        theirs = data.normalize_offline_sample(store.load_feature_file(str(file)), max_len=4096)
        assert torch.equal(theirs["input_ids"][0], ours.token_ids)
        assert torch.equal(theirs["loss_mask"][0].bool(), ours.loss_mask)
        assert torch.equal(theirs["hidden_state"][0], written.beside(ours, written.SLOTS))
        assert torch.equal(theirs["target"][0], ours.state(FINAL_NORMED))


def test_speculators_reads_its_files_as_we_do(tmp_path):
    """speculators 0.9.0: all states but the last side by side, and the last; its batch is shifted, so undo that."""
    pytest.importorskip("datasets")
    library = pytest.importorskip("speculators.train.data")
    given = written.samples()
    boundaries = written.current(tmp_path / "dump", given)
    rewrite_with_datasets(tmp_path / "dump", given)
    theirs = library.ArrowDataset(4096, tmp_path / "dump", on_missing="raise")
    for i, ours in enumerate(open_dump(tmp_path / "dump", boundaries, known=KNOWN)):
        raw = theirs._get_raw_data(i)
        assert torch.equal(torch.as_tensor(raw["input_ids"]).long(), ours.token_ids)
        assert torch.equal(torch.as_tensor(raw["loss_mask"]).bool(), ours.loss_mask)
        assert torch.equal(raw["hidden_states"], written.beside(ours, boundaries[:-1]))
        assert torch.equal(raw["verifier_last_hidden_states"], ours.state(boundaries[-1]))


def rewrite_with_datasets(folder, given) -> None:
    """The data set as the library saves it."""
    import datasets

    next(folder.glob("*.arrow")).unlink()
    rows = {
        "input_ids": [s.token_ids.tolist() for s in given],
        "loss_mask": [s.loss_mask.long().tolist() for s in given],
        "seq_len": [len(s.token_ids) for s in given],
    }
    datasets.Dataset.from_dict(rows).with_format("torch").save_to_disk(folder)


def test_transformers_states_are_what_the_layout_says(tmp_path):
    """Each B(k) is what block k is given, and the head on `final_normed` gives the model's logits."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, vocab_size=96
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    inputs: list[torch.Tensor] = []
    for block in model.model.layers:
        block.register_forward_pre_hook(
            lambda _, args, kwargs: inputs.append((*args, *kwargs.values())[0]), with_kwargs=True
        )
    ids = torch.randint(0, 96, (1, 12))
    with torch.inference_mode():
        output = model(ids, output_hidden_states=True)
    mask = torch.ones(12, dtype=torch.bool)
    torch.save({"input_ids": ids, "hidden_states": output.hidden_states, "loss_mask": mask}, tmp_path / "a.pt")
    origin = Origin(trainer("speculators"), LayerIds(None, "absent"), TargetShape(3))
    boundaries = layout_boundaries(tmp_path, Known(32), origin)
    assert boundaries == (0, 1, 2, FINAL_NORMED)
    (sample,) = open_dump(tmp_path, boundaries, known=Known(32))
    for k in range(3):
        assert torch.equal(sample.state(k), inputs[k][0])
    assert torch.allclose(model.lm_head(sample.state(FINAL_NORMED)), output.logits[0], atol=1e-6)
