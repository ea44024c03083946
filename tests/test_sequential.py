"""A server's loop with a KV cache, against the rollout's walk; and what keeping fed-back states costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from bundled import CASE
from torch import Tensor

from eagle3lib import load_case
from eagle3lib.acceptance import length_difference, walk
from eagle3lib.boundaries import FINAL_NORMED, Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.investigation import Investigation
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample
from eagle3lib.sequential import cost_of_kept_states, from_every_start, trace

STEPS = (1, 2, 4, 16)
TURNS, LENGTH = ((6, 32), (37, 60)), 62


def echoing(draft: Draft, wiring: Wiring, steps: int = 16, seed: int = 9, **changes: object) -> Sample:
    """A sample that records what the draft says for 0 to `steps` tokens, then a token of its own, and so on."""
    source = toys.generator(seed)
    sample = toys.make_sample(seed, **{"length": LENGTH, "turns": TURNS, **changes})
    for turn in sample.turns:
        t = turn.starts[0]
        while t in turn.starts:
            wanted = int(torch.randint(0, steps + 1, (), generator=source))
            for k in range(min(wanted, turn.end - t - 2)):
                found = rollout(draft, sample, wiring, k + 1)
                tokens = sample.token_ids.clone()
                tokens[t + 2 + k] = found.predicted[found.starts.tolist().index(t), k]
                sample = replace(sample, token_ids=tokens)
            t += wanted + 1
    return sample


def two_layers() -> dict[str, Tensor]:
    """A further layer of its own weights, H wide."""
    tensors = toys.draft_tensors()
    for name, tensor in toys.draft_tensors(seed=12).items():
        if name.startswith("layers.0.") and "input_layernorm" not in name:
            further = name.replace("layers.0.", "layers.1.").replace("hidden_norm", "input_layernorm")
            narrow = any(f".{x}_proj" in name for x in "qkv")
            tensors[further] = tensor[:, toys.HIDDEN :].contiguous() if narrow else tensor
    return tensors


def changed(folder: Path, **numbers: object) -> Path:
    """Other numbers of the layer in config.json."""
    config = json.loads((folder / "config.json").read_text())
    config["transformer_layer_config"] |= numbers
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def windowed(folder: Path, window: int) -> Path:
    """A sliding window in every layer."""
    return changed(folder, sliding_window=window, layer_types=["sliding_attention"])


def same_rounds(draft: Draft, wiring: Wiring, sample: Sample | None = None) -> None:
    """For every K: rounds, and drafted tokens as far as they were forced; more than one length must occur."""
    sample = sample or echoing(draft, wiring)
    whole = rollout(draft, sample, wiring, max(STEPS))
    row_of = {t: row for row, t in enumerate(whole.starts.tolist())}
    for steps in STEPS:
        traced = trace(draft, sample, wiring, steps)
        assert [item.round for item in traced] == walk(whole, steps)
        assert len({item.round.accepted for item in traced}) > 1
        for item in traced:
            told = min(item.round.accepted + 1, int(whole.valid[row_of[item.round.start], :steps].sum()))
            assert item.drafted[:told] == tuple(whole.predicted[row_of[item.round.start], :told].tolist())
            assert len(item.drafted) == steps


@pytest.mark.parametrize("input_norm", ["none", "concat", "slots"])
@pytest.mark.parametrize(("norm_before_residual", "norm_output"), [(False, False), (True, True)])
def test_the_loop_gives_the_walk_s_rounds(input_norm, norm_before_residual, norm_output, tmp_path):
    flags = {"norm_before_residual": norm_before_residual, "norm_output": norm_output}
    draft = load_draft(toys.write_draft(tmp_path, toys.draft_tensors(input_norm), **flags), device="cpu")
    same_rounds(draft, Wiring(toys.SLOTS))


@pytest.mark.parametrize(
    "flags", [{"norm_head": False}, {"rope_theta": 20.0}, {"position_offset": 1}, {"norm_output": True}]
)
def test_the_loop_honours_the_wiring_s_flags(flags, draft):
    same_rounds(draft, Wiring(toys.SLOTS, **flags))


@pytest.mark.parametrize("window", [1, 2, 3, 7, 200])
@pytest.mark.parametrize("window_from", ["query", "start"])
def test_the_loop_with_a_window(window, window_from, tmp_path):
    draft = load_draft(windowed(toys.write_draft(tmp_path), window), device="cpu")
    same_rounds(draft, Wiring(toys.SLOTS, window_from=window_from))


@pytest.mark.parametrize("window", [None, 5])
def test_the_loop_with_two_layers(window, tmp_path):
    folder = toys.write_draft(tmp_path, two_layers())
    draft = load_draft(windowed(folder, window) if window else folder, device="cpu")
    assert draft.config.n_layers == 2
    same_rounds(draft, Wiring(toys.SLOTS))


def test_the_loop_with_latent_attention(tmp_path):
    mla = pytest.importorskip("test_mla")
    draft = load_draft(mla.LatentDraft(mla.latent_config(rope=mla.YARN)).save(tmp_path), device="cpu")
    same_rounds(draft, Wiring(toys.SLOTS))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 500.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 500.0},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_the_loop_with_a_stretched_rope(rope, tmp_path):
    folder = changed(toys.write_draft(tmp_path), max_position_embeddings=32, rope_parameters=rope)
    same_rounds(load_draft(folder, device="cpu"), Wiring(toys.SLOTS))


def test_the_loop_of_a_draft_without_fc(tmp_path):
    tensors = {name: tensor for name, tensor in toys.draft_tensors().items() if name != "fc.weight"}
    draft = load_draft(toys.write_draft(tmp_path, tensors, use_aux_hidden_state=False), device="cpu")
    wiring = Wiring((FINAL_NORMED,))
    same_rounds(draft, wiring, echoing(draft, wiring, boundaries=(FINAL_NORMED,)))


def test_drafts_from_every_start_equal_the_rollout_s(draft):
    """Up to each start's first miss, where the loop feeds its own token and the rollout the recorded one; K = 16."""
    wiring = Wiring(toys.SLOTS)
    sample = echoing(draft, wiring)
    whole, found = rollout(draft, sample, wiring, 16), dict(from_every_start(draft, sample, wiring, 16))
    assert sorted(found) == whole.starts.tolist()
    for row, t in enumerate(whole.starts.tolist()):
        accepted = int(whole.hit[row].int().cumprod(0).sum())
        told = min(accepted + 1, int(whole.valid[row].sum()))
        assert found[t][:told] == whole.predicted[row, :told].tolist()


def kept_by_hand(draft: Draft, sample: Sample, wiring: Wiring, steps: int) -> list[int]:
    """Accepted drafts of every round of an engine that keeps fed-back states, by states put in place of g.

    A kept key was made from (g', embedding) at its own position: as if the target's state had fused to g'.
    """
    from eagle3lib import draft_head, forward, fusion

    config, tokens = draft.config.under(wiring), sample.token_ids
    g, embedding = fusion.fuse(draft, sample, wiring), draft.embed(tokens)
    accepted_all = []
    for turn in sample.turns:
        t = turn.starts[0]
        while t in turn.starts:
            u, _ = forward.first_step(draft, config, g[: t + 1], embedding[1 : t + 2])
            kept, accepted = {}, 0
            rows, ids = g[: t + 1], tokens[1 : t + 2]
            for k in range(steps):
                choice = draft_head.greedy(draft, u[-1:], config)
                if t + 2 + k >= turn.end or int(choice) != int(tokens[t + 2 + k]):
                    break
                accepted += 1
                kept[t + 1 + k] = forward.feedback(draft, config, u[-1:])
                rows, ids = torch.cat([rows, kept[t + 1 + k]]), torch.cat([ids, choice])
                u, _ = forward.first_step(draft, config, rows, draft.embed(ids))
            for position in [t + k for k in range(1, min(accepted, steps - 1) + 1)]:
                g[position] = kept[position][0]
            accepted_all.append(accepted)
            t += accepted + 1
    return accepted_all


@pytest.mark.parametrize("steps", [2, 4, 16])
def test_kept_states_stay_in_the_prefix(steps, draft):
    """Against whole passes over the states that such an engine's keys stand for; the rounds then differ."""
    wiring, differing = Wiring(toys.SLOTS), 0
    for seed in range(3):
        sample = echoing(draft, wiring, seed=seed)
        with torch.inference_mode():
            expected = kept_by_hand(draft, sample, wiring, steps)
        assert [item.round.accepted for item in trace(draft, sample, wiring, steps, rewrite=False)] == expected
        differing += expected != [item.round.accepted for item in trace(draft, sample, wiring, steps)]
    assert differing, "the fault must change a round, or the test sees nothing"


@pytest.mark.parametrize("rewrite", [True, False])
def test_no_round_changes_where_drafts_end_with_their_first_miss(rewrite, draft):
    """What is drafted beyond the miss is dropped either way; what a turn's end cuts may be kept for the next turn."""
    wiring, cut = Wiring(toys.SLOTS), 0
    for seed in range(3):
        sample = echoing(draft, wiring, seed=seed)
        for steps in STEPS:
            whole = trace(draft, sample, wiring, steps, rewrite=rewrite)
            found = trace(draft, sample, wiring, steps, rewrite=rewrite, up_to_miss=True)
            assert [item.round for item in found] == [item.round for item in whole]
            for item, other in zip(found, whole, strict=True):
                drafted = steps if item.round.cut else min(item.round.accepted + 1, steps)
                assert item.drafted == other.drafted[:drafted]
            cut += sum(item.round.cut and item.round.turn == 0 and item.round.accepted > 0 for item in found)
    assert cut, "a turn before another must end inside a draft"


def test_one_drafted_token_keeps_nothing(draft):
    """With K = 1 no draft is ever fed back, so nothing fed back can be kept."""
    wiring = Wiring(toys.SLOTS)
    found = cost_of_kept_states(draft, [echoing(draft, wiring, seed=seed) for seed in range(3)], wiring, 1)
    assert (found.lost.value, found.lost.low, found.lost.high) == (0, 0, 0)


def test_the_cost_of_kept_states_is_the_difference_of_two_walks(draft):
    """The sound side is the rollout's own walk; toys that record the draft's words lose by the fault."""
    wiring = Wiring(toys.SLOTS)
    samples = [replace(echoing(draft, wiring, seed=seed), name=str(seed)) for seed in range(6)]
    found = cost_of_kept_states(draft, samples, wiring, 4)
    rolled = [rollout(draft, sample, wiring, 4) for sample in samples]
    assert length_difference(rolled, rolled, 4).value == 0
    lengths = [item.length for r in rolled for item in walk(r, 4) if not item.last]
    assert found.rewritten.value == pytest.approx(sum(lengths) / len(lengths))
    assert found.rewritten.count == len(lengths)
    assert found.lost.value == pytest.approx(found.rewritten.value - found.kept.value)
    assert found.lost.low > 0


def test_a_bundled_sample_round_by_round():
    """The committed draft on a committed response: every round at K = 4."""
    investigation = Investigation(load_case(CASE), "cpu")
    wiring = investigation.trained.wiring
    sample = investigation.samples(wiring.slots)[0]
    rounds = [item.round for item in trace(investigation.draft, sample, wiring, 4)]
    assert rounds == walk(rollout(investigation.draft, sample, wiring, 4), 4)
    assert len(rounds) > 20


def test_without_turns_pairs_or_samples(draft):
    wiring = Wiring(toys.SLOTS)
    assert trace(draft, toys.make_sample(turns=()), wiring, 2) == []
    assert trace(draft, toys.make_sample(length=1, turns=((0, 1),)), wiring, 2) == []
    assert list(from_every_start(draft, toys.make_sample(length=1, turns=((0, 1),)), wiring, 2)) == []
    short = toys.make_sample(rows=12)  # states of the first 12 tokens only
    assert [item.round for item in trace(draft, short, wiring, 2)] == walk(rollout(draft, short, wiring, 2), 2)
    with pytest.raises(ValueError, match="at least one sample"):
        cost_of_kept_states(draft, [], wiring, 2)
    with pytest.raises(ValueError, match="steps must be 1 or more"):
        trace(draft, toys.make_sample(), wiring, 0)
