"""A rollout of all starts at once, against drafting from each start alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import toys
from torch import Tensor
from torch.testing import assert_close

from eagle3lib.boundaries import FINAL_NORMED, Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample, Turn

K = 4
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


class PlainDraft:
    """A draft as one would write it to check another: one start at a time, whole sequences, float64.

    A round from pair t is a causal sequence of its own: the pairs 0..t fused from target states, then one row
    for every drafted step, fed with the row before it.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        norm_before_residual: bool = False,
        norm_output: bool = False,
        window: int | None = None,
        residual_embedding: bool = False,
    ) -> None:
        self.w = {name: tensor.double() for name, tensor in tensors.items()}
        self.norm_before_residual, self.norm_output, self.window = norm_before_residual, norm_output, window
        self.residual_embedding = residual_embedding
        self.target_ids = tensors["d2t"] + torch.arange(toys.DRAFT_VOCABULARY)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Root-mean-square norm by the weight of that name."""
        return x / (x.pow(2).mean(-1, keepdim=True) + toys.EPS).sqrt() * self.w[name]

    def fused(self, sample: Sample) -> Tensor:
        """g of every pair."""
        if "fc.weight" not in self.w:
            return sample.states[FINAL_NORMED].double()
        chunks = [sample.states[b].double() for b in toys.SLOTS]
        if "fc_norm.0.weight" in self.w:
            chunks = [self.norm(f"fc_norm.{i}.weight", chunk) for i, chunk in enumerate(chunks)]
        aux = torch.cat(chunks, -1)
        if "input_norm.weight" in self.w:
            aux = self.norm("input_norm.weight", aux)
        return aux @ self.w["fc.weight"].T + self.w.get("fc.bias", 0)

    def layer(self, g: Tensor, tokens: Tensor) -> Tensor:
        """u of every row of one causal sequence; row i is at rope position i."""
        layer = "layers.0."
        embedding = self.w["embed_tokens.weight"][tokens]
        embedded = self.norm(layer + "input_layernorm.weight", embedding)
        hidden = self.norm(layer + "hidden_norm.weight", g)
        x = torch.cat([embedded, hidden], -1)
        q, k, v = (
            (x @ self.w[f"{layer}self_attn.{name}_proj.weight"].T).view(len(x), -1, toys.HEAD_DIM) for name in "qkv"
        )
        q, k = self.rotated(q), self.rotated(k)
        mixed = torch.zeros_like(q)
        for head in range(toys.HEADS):
            shared = head // (toys.HEADS // toys.KV_HEADS)
            scores = q[:, head] @ k[:, shared].T / toys.HEAD_DIM**0.5
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            if self.window:
                scores = scores.masked_fill(torch.ones_like(scores).tril(-self.window).bool(), -torch.inf)
            mixed[:, head] = scores.softmax(-1) @ v[:, shared]
        plain, normed = (embedding, embedded) if self.residual_embedding else (g, hidden)
        y = (normed if self.norm_before_residual else plain) + mixed.flatten(1) @ self.w[
            layer + "self_attn.o_proj.weight"
        ].T
        normed = self.norm(layer + "post_attention_layernorm.weight", y)
        gate, up = (normed @ self.w[f"{layer}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return y + (gate * gate.sigmoid() * up) @ self.w[layer + "mlp.down_proj.weight"].T

    @staticmethod
    def rotated(x: Tensor) -> Tensor:
        """Rope on [T, heads, d]: each pair (j, j + d/2) turned by its position's angle."""
        half = toys.HEAD_DIM // 2
        positions = torch.arange(len(x), dtype=torch.float64)[:, None]
        result = x.clone()
        for j in range(half):
            angle = positions * toys.ROPE_THETA ** (-2 * j / toys.HEAD_DIM)
            a, b = x[:, :, j], x[:, :, j + half]
            result[:, :, j] = a * angle.cos() - b * angle.sin()
            result[:, :, j + half] = b * angle.cos() + a * angle.sin()
        return result

    def draft(self, sample: Sample, start: int, steps: int) -> Tensor:
        """[steps, Vd] log-probabilities of a round from pair `start`, the recorded tokens forced."""
        g, tokens = self.fused(sample)[: start + 1], sample.token_ids[1 : start + 2]
        rows = []
        for k in range(steps):
            last = self.layer(g, tokens)[-1]
            normed = self.norm("norm.weight", last)
            rows.append((normed @ self.w["lm_head.weight"].T).log_softmax(-1))
            if k + 1 < steps:
                g = torch.cat([g, (normed if self.norm_output else last)[None]])
                tokens = torch.cat([tokens, sample.token_ids[None, start + 2 + k]])
        return torch.stack(rows)


@pytest.mark.parametrize("input_norm", ["none", "concat", "slots"])
@pytest.mark.parametrize(("norm_before_residual", "norm_output"), [(False, False), (True, True)])
def test_a_rollout_equals_drafting_from_each_start_alone(
    input_norm, norm_before_residual, norm_output, tmp_path, sample
):
    """Choices, hits, and log-probabilities of the recorded tokens (float32 against float64, 1e-5), K = 4."""
    tensors = toys.draft_tensors(input_norm)
    flags = {"norm_before_residual": norm_before_residual, "norm_output": norm_output}
    draft = load_draft(toys.write_draft(tmp_path, tensors, **flags), device="cpu")
    compare(draft, PlainDraft(tensors, **flags), sample, Wiring(toys.SLOTS))


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_an_embedding_as_residual_equals_drafting_alone(norm_before_residual, tmp_path, sample):
    tensors, flags = toys.draft_tensors(), {"norm_before_residual": norm_before_residual}
    draft = load_draft(toys.write_draft(tmp_path, tensors, **flags), device="cpu")
    plain = PlainDraft(tensors, **flags, residual_embedding=True)
    compare(draft, plain, sample, Wiring(toys.SLOTS, residual_embedding=True))


def compare(draft: Draft, plain: PlainDraft, sample: Sample, wiring: Wiring) -> None:
    """Choices, hits and log-probabilities of every start and step."""
    found = rollout(draft, sample, wiring, K)
    for row, start in enumerate(found.starts.tolist()):
        steps = int(found.valid[row].sum())
        logprobs = plain.draft(sample, start, steps)
        recorded = sample.token_ids[start + 2 : start + 2 + steps]
        assert torch.equal(found.predicted[row, :steps], plain.target_ids[logprobs.argmax(-1)])
        for k, token in enumerate(recorded.tolist()):
            ids = (plain.target_ids == token).nonzero().flatten()
            expected = logprobs[k, ids[0]] if len(ids) else torch.tensor(-torch.inf, dtype=torch.float64)
            assert_close(found.logprob[row, k].double(), expected, **TOLERANCE)
            assert bool(found.hit[row, k]) == (int(found.predicted[row, k]) == token)


@pytest.mark.parametrize("window", [1, 2, 3, 6, 40])
def test_a_window_is_counted_from_each_query_s_own_position(window, tmp_path, sample):
    """As a server counts it, also where it leaves the prefix and the chain's first keys behind."""
    tensors = toys.draft_tensors()
    folder = toys.write_draft(tmp_path, tensors)
    config = json.loads((folder / "config.json").read_text())
    config["transformer_layer_config"] |= {"sliding_window": window, "layer_types": ["sliding_attention"]}
    (folder / "config.json").write_text(json.dumps(config))
    compare(load_draft(folder, device="cpu"), PlainDraft(tensors, window=window), sample, Wiring(toys.SLOTS))


def test_a_bias_of_fc_is_added(tmp_path, sample):
    tensors = toys.draft_tensors() | {"fc.bias": torch.randn(toys.HIDDEN, generator=toys.generator(4))}
    draft = load_draft(toys.write_draft(tmp_path, tensors), device="cpu")
    compare(draft, PlainDraft(tensors), sample, Wiring(toys.SLOTS))


def test_a_draft_without_fc_takes_the_normed_last_state(tmp_path, sample):
    """`use_aux_hidden_state` = false: one slot, and g is what is in it."""
    tensors = {name: t for name, t in toys.draft_tensors().items() if name != "fc.weight"}
    draft = load_draft(toys.write_draft(tmp_path, tensors, use_aux_hidden_state=False), device="cpu")
    assert (draft.config.n_slots, draft.config.uses_fc) == (1, False)
    normed = torch.randn(len(sample.token_ids), toys.HIDDEN, generator=toys.generator(8))
    sample = replace(sample, states={FINAL_NORMED: normed})
    compare(draft, PlainDraft(tensors), sample, Wiring((FINAL_NORMED,)))


def test_the_plain_draft_tells_a_wrong_feedback_apart(tmp_path, sample):
    """The comparison above has teeth: another feedback changes later steps and leaves step 0 alone."""
    tensors = toys.draft_tensors()
    draft = load_draft(toys.write_draft(tmp_path, tensors, norm_output=True), device="cpu")
    right = rollout(draft, sample, Wiring(toys.SLOTS), K).logprob
    wrong = rollout(draft, sample, Wiring(toys.SLOTS, norm_output=False), K).logprob
    known = right.isfinite()
    assert torch.equal(right[:, 0], wrong[:, 0])
    assert (right - wrong)[:, 1:][known[:, 1:]].abs().max() > 1e-2


def test_starts_lie_in_the_turns_and_steps_end_with_them(draft, sample):
    """t >= P - 1 with x[t + 2] in the turn; step k is valid where x[t + 2 + k] is; recorded is that token."""
    found = rollout(draft, sample, Wiring(toys.SLOTS), K)
    pairs = [(t, turn) for turn, (begin, end) in enumerate(toys.TURNS) for t in range(begin - 1, end - 2)]
    assert list(zip(found.starts.tolist(), found.turns.tolist(), strict=True)) == pairs
    for row, (t, turn) in enumerate(pairs):
        for k in range(K):
            inside = t + 2 + k < toys.TURNS[turn][1]
            assert bool(found.valid[row, k]) == inside
            assert int(found.recorded[row, k]) == (int(sample.token_ids[t + 2 + k]) if inside else -1)
            if not inside:
                assert not found.hit[row, k]
                assert found.logprob[row, k] == -torch.inf


@pytest.mark.parametrize(
    ("begin", "end", "starts"),
    [(6, 17, range(5, 15)), (6, 7, range(0)), (6, 8, range(5, 6)), (0, 4, range(0, 2)), (1, 4, range(0, 2))],
)
def test_the_starts_of_a_turn(begin, end, starts):
    """A turn of one token has none: its only token came from the prefill. B(-1) is no pair."""
    assert list(Turn(begin, end).starts) == list(starts)


@pytest.mark.parametrize("rows", [toys.LENGTH, toys.LENGTH - 1])
def test_the_last_token_s_state_is_not_needed(rows, draft):
    """A dump with one row less than tokens gives the same rollout, bit for bit, where the turn reaches the end."""
    whole = toys.make_sample(turns=((6, toys.LENGTH),))
    found = rollout(draft, toys.make_sample(turns=((6, toys.LENGTH),), rows=rows), Wiring(toys.SLOTS), K)
    expected = rollout(draft, whole, Wiring(toys.SLOTS), K)
    assert torch.equal(found.starts, expected.starts)
    assert torch.equal(found.logprob, expected.logprob)


def test_starts_without_states_are_left_out(draft):
    """States of the first 12 tokens only: no start beyond them, and the others are as they were."""
    short = toys.make_sample(rows=12)
    found = rollout(draft, short, Wiring(toys.SLOTS), 2)
    expected = rollout(draft, toys.make_sample(), Wiring(toys.SLOTS), 2)
    assert found.starts.tolist() == [t for t in expected.starts.tolist() if t < 12]
    known = found.logprob.isfinite()
    assert_close(found.logprob[known], expected.logprob[: len(found.starts)][known], **TOLERANCE)


def test_a_token_outside_the_draft_vocabulary_is_a_miss_without_a_probability(draft, sample):
    """Its log-probability is -inf, whatever the draft chose; every other valid one is finite."""
    found = rollout(draft, sample, Wiring(toys.SLOTS), K)
    inside = draft.draft_ids[found.recorded.clamp_min(0)] >= 0
    assert found.valid.logical_and(~inside).any(), "the toy must hold a token outside the draft vocabulary"
    assert torch.equal(found.logprob.isfinite(), found.valid & inside)
    assert not found.hit[~inside].any()
    assert not torch.isin(found.recorded[found.valid & ~inside], draft.target_ids).any()


def test_a_recorded_token_that_the_draft_chooses_is_a_hit(draft, sample):
    """Recording the draft's own step-0 choice of one start makes exactly that step a hit."""
    wiring, row = Wiring(toys.SLOTS), 3
    before = rollout(draft, sample, wiring, 1)
    t = int(before.starts[row])
    tokens = sample.token_ids.clone()
    tokens[t + 2] = before.predicted[row, 0]
    after = rollout(draft, replace(sample, token_ids=tokens), wiring, 1)
    assert not before.hit[row, 0]
    assert after.hit[row, 0]
    assert torch.equal(after.predicted[: row + 1], before.predicted[: row + 1]), "the past cannot change"


def test_a_sample_without_a_generated_token_has_no_starts(draft):
    """An empty rollout, not an error."""
    found = rollout(draft, toys.make_sample(turns=()), Wiring(toys.SLOTS), K)
    assert found.hit.shape == (0, K)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_very_short_sample_has_few_starts_or_none(length, draft):
    """One token has no pair, two have a pair and no start, three have one start."""
    found = rollout(draft, toys.make_sample(length=length, turns=((0, length),)), Wiring(toys.SLOTS), K)
    assert len(found.starts) == max(0, length - 2)


def test_a_rollout_without_steps_is_refused(draft, sample):
    """steps = 0 is a slip of the caller's."""
    with pytest.raises(ValueError, match="steps must be 1 or more"):
        rollout(draft, sample, Wiring(toys.SLOTS), 0)
