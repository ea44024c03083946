"""The replay of sampled tokens against real speculative loops at temperature 0.8, with the whole target.

One-hot: the draft is greedy, and a draft token is kept when it equals the token that the target samples.
Rejection (arXiv 2211.17192): a draft token d ~ q is kept with chance min(1, p(d) / q(d)); the first that is not
gives way to a sample of max(p - q, 0), normalised. Given recorded tokens x ~ p, step k of pair t is kept with chance

    a_k(t) = 1 if the draft's choice is x else 0,  or  min(1, q(x) / p(x)),   x = x[t + 2 + k]

and the chance that a round starts at t follows forward: π(P - 1) = 1, π(t + L) += π(t) · P(L | t).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from bundled import CASE, library_draft, living_target
from torch import Tensor

from eagle3lib import draft_head, load_case, rollout
from eagle3lib.acceptance import walk
from eagle3lib.boundaries import Wiring
from eagle3lib.investigation import Investigation
from eagle3lib.rollout import chain_states
from eagle3lib.sample import Sample

pytestmark = pytest.mark.slow

STEPS, TEMPERATURE, END = 4, 0.8, 2
PROMPTS, NEW_TOKENS = 6, 72
LOOPS, PLAIN = 2, 6  # responses to each prompt
SERVED = (3, 16, 28)  # a wrong wiring, whose replay must be told apart
LEVEL = 0.001


@dataclass(frozen=True)
class Run:
    """What a loop left behind: its tokens with the target's states, and its round lengths in order."""

    sample: Sample
    lengths: list[int]

    @property
    def inner(self) -> list[int]:
        """Lengths of all rounds but the last: those after which another round can start."""
        turn = self.sample.turns[0]
        ends = np.cumsum(self.lengths) + turn.starts[0]
        return [length for length, end in zip(self.lengths, ends, strict=True) if end in turn.starts]


class LoopTarget:
    """The target with a KV cache: its distribution after each token that it is fed, and the states it made."""

    def __init__(self, boundaries: tuple[int, ...]) -> None:
        from transformers import DynamicCache

        self.living, self.boundaries, self.cache = living_target(), boundaries, DynamicCache()
        self.states: dict[int, Tensor] = {b: torch.empty(0, self.living.model.config.hidden_size) for b in boundaries}

    def read(self, token_ids: list[int]) -> Tensor:
        """p [T, V], float64, at the loop's temperature."""
        with self.living.capture(self.boundaries) as capture:
            output = self.living.model(input_ids=torch.tensor([token_ids]), past_key_values=self.cache)
        new = {b: state[0].to(torch.bfloat16).float() for b, state in capture.raw.items()}  # as dumps store them
        self.states = {b: torch.cat([self.states[b], new[b]]) for b in self.boundaries}
        return (output.logits[0].double() / TEMPERATURE).softmax(-1)

    def forget_after(self, n: int) -> None:
        self.cache.crop(n)
        self.states = {b: state[:n] for b, state in self.states.items()}


class LoopDraft:
    """The library's layer with a KV cache: target states extend it, what was fed back is forgotten each round."""

    def __init__(self, slots: tuple[int, ...]) -> None:
        from transformers import DynamicCache

        self.model, self.slots, self.cache, self.kept = library_draft(), slots, DynamicCache(), 0

    def extend(self, states: dict[int, Tensor], tokens: list[int]) -> Tensor:
        """u of the last pair; pairs are (states[i], tokens[i + 1]), and those since the last round are new."""
        self.cache.crop(self.kept)
        first, self.kept = self.kept, len(tokens) - 1
        aux = torch.cat([states[b][first : self.kept] for b in self.slots], dim=-1)
        return self._rows(self.model.fc(aux), tokens[first + 1 :])

    def draft(self, u: Tensor, sampler: torch.Generator | None) -> Iterator[tuple[int, Tensor]]:
        """K times a token and q [V] at the loop's temperature; the greedy choice without a sampler."""
        places = torch.arange(len(self.model.d2t)) + self.model.d2t
        for step in range(STEPS):
            logits = self.model.lm_head(self.model.norm(u))[0]
            q = (logits.double() / TEMPERATURE).softmax(-1)
            choice = logits.argmax() if sampler is None else draw(q, sampler)
            whole = torch.zeros(self.model.config.transformer_layer_config.vocab_size, dtype=torch.float64)
            whole[places] = q
            yield int(places[choice]), whole
            if step + 1 < STEPS:
                u = self._rows(u, [int(places[choice])])

    def _rows(self, hidden: Tensor, tokens: list[int]) -> Tensor:
        first = self.cache.get_seq_length()
        n, positions = len(tokens), torch.arange(first, first + len(tokens))[None]
        x = torch.cat([self.model.embed_tokens(torch.tensor([tokens])), hidden[None]], dim=-1)
        return self.model.layers[0](
            x,
            attention_mask=torch.full((n, first + n), -torch.inf).triu(first + 1)[None, None],
            position_ids=positions,
            past_key_values=self.cache,
            cache_position=positions[0],
            position_embeddings=self.model.rotary_emb(x, positions),
        )[0, -1:]


def draw(p: Tensor, sampler: torch.Generator) -> int:
    """A sample of p, which need not be normalised."""
    return int(torch.multinomial(p, 1, generator=sampler))


@torch.inference_mode()
def speculative_loop(prompt: list[int], slots: tuple[int, ...], seed: int, *, one_hot: bool) -> Run:
    """Tokens and round lengths until the end token, or `NEW_TOKENS` new ones."""
    sampler = torch.Generator().manual_seed(seed)
    target, draft = LoopTarget(slots), LoopDraft(slots)
    tokens, lengths = [*prompt, draw(target.read(prompt)[-1], sampler)], []
    while len(tokens) - len(prompt) < NEW_TOKENS and END not in tokens[len(prompt) :]:
        drafted = list(draft.draft(draft.extend(target.states, tokens), None if one_hot else sampler))
        before = len(tokens)
        p = target.read([tokens[-1], *(token for token, _ in drafted)])
        for row, (token, q) in zip(p, drafted, strict=False):
            if one_hot:
                tokens.append(draw(row, sampler))
                kept = tokens[-1] == token
            else:
                kept = float(torch.rand((), generator=sampler, dtype=torch.float64)) < float(row[token] / q[token])
                tokens.append(token if kept else draw((row - q).clamp_min(0), sampler))
            if not kept:
                break
        else:
            tokens.append(draw(p[-1], sampler))
        lengths.append(len(tokens) - before)
        target.forget_after(len(tokens) - 1)
    return Run(recorded(tokens, len(prompt), target.states), lengths)


def recorded(tokens: list[int], prompt: int, states: dict[int, Tensor]) -> Sample:
    """The response up to its end token and no longer than `NEW_TOKENS`, as a dump would hold it."""
    end = min([prompt + NEW_TOKENS, *(i + 1 for i, token in enumerate(tokens) if i >= prompt and token == END)])
    token_ids = torch.tensor(tokens[:end])
    return Sample("sampled", token_ids, torch.arange(len(token_ids)) >= prompt, states, temperature=TEMPERATURE)


@pytest.fixture(scope="module")
def investigation() -> Investigation:
    return Investigation(load_case(CASE), "cpu")


@pytest.fixture(scope="module")
def wiring(investigation: Investigation) -> Wiring:
    return investigation.trained.wiring


@pytest.fixture(scope="module")
def prompts(investigation: Investigation, wiring: Wiring) -> list[list[int]]:
    """Those of the first bundled greedy responses."""
    samples = investigation.samples(wiring.slots)[:PROMPTS]
    return [sample.token_ids[: sample.turns[0].begin].tolist() for sample in samples]


@pytest.fixture(scope="module")
def plain(prompts: list[list[int]], wiring: Wiring) -> list[tuple[Sample, Tensor]]:
    """Responses sampled token by token, without a draft; and ln p of each token at the temperature."""
    import living_target as module

    living, found = living_target(), []
    boundaries = tuple(sorted({*wiring.slots, *SERVED}))
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(module, "NEW_TOKENS", NEW_TOKENS)
        for i, prompt in enumerate(prompts):
            for response in living.respond([prompt] * PLAIN, (), TEMPERATURE, seed=1000 + i):
                target = LoopTarget(boundaries)
                p = target.read(response.token_ids.tolist())
                logp = p[:-1].gather(1, response.token_ids[1:, None])[:, 0].log()
                sample = recorded(response.token_ids.tolist(), len(prompt), target.states)
                found.append((sample, torch.cat([torch.zeros(1, dtype=torch.float64), logp])))
    return found


def counted(lengths: list[int]) -> np.ndarray:
    """[K + 1] rounds by length."""
    return np.bincount(lengths, minlength=STEPS + 2)[1:].astype(float)


def expected(sample: Sample, kept: Tensor) -> np.ndarray:
    """[K + 1] expected rounds by length along one response, each turn's last left out; `kept[t, k]` is a_k(t)."""
    turn, counts = sample.turns[0], np.zeros(STEPS + 1)
    starting = {turn.starts[0]: 1.0}
    for t in turn.starts:
        chances = kept[t].numpy()
        reached = np.concatenate([[1.0], np.cumprod(chances)])
        for length in range(1, STEPS + 2):
            stops = 1 - chances[length - 1] if length <= STEPS else 1.0
            share = starting.get(t, 0.0) * reached[length - 1] * stops
            if t + length in turn.starts:
                counts[length - 1] += share
                starting[t + length] = starting.get(t + length, 0.0) + share
    return counts


@torch.inference_mode()
def acceptances(investigation: Investigation, sample: Sample, wiring: Wiring, logp: Tensor) -> Tensor:
    """a_k(t) [P, K] = min(1, q(x) / p(x)); 0 outside the draft vocabulary and beyond the recording."""
    draft, kept = investigation.draft, torch.zeros(sample.n_pairs, STEPS, dtype=torch.float64)
    config = draft.config.under(wiring)
    for k, u in enumerate(chain_states(draft, sample, wiring, STEPS)):
        n = min(len(u), len(sample.token_ids) - 2 - k)
        tokens = sample.token_ids[2 + k : 2 + k + n]
        labels = draft.draft_ids[tokens]
        logq = (draft_head.logits(draft, u[:n], config).double() / TEMPERATURE).log_softmax(-1)
        logq = logq.gather(1, labels.clamp_min(0)[:, None])[:, 0].masked_fill(labels < 0, -torch.inf)
        kept[:n, k] = (logq - logp[2 + k : 2 + k + n]).clamp_max(0).exp()
    return kept


def p_value(first: np.ndarray, second: np.ndarray) -> float:
    """Of the chi-square test that two rows of counts come from one distribution; rare lengths are merged."""
    table = np.stack([first, second])
    while table.shape[1] > 2 and (table.sum(0)[-1] * table.sum(1) / table.sum()).min() < 5:
        table = np.concatenate([table[:, :-2], table[:, -2:].sum(1, keepdims=True)], axis=1)
    even = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    statistic = ((table - even) ** 2 / even).sum()
    freedom = table.shape[1] - 1
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(statistic / 2.0)))


def runs(prompts: list[list[int]], slots: tuple[int, ...], *, one_hot: bool) -> list[Run]:
    return [
        speculative_loop(prompt, slots, seed=100 * repeat + i, one_hot=one_hot)
        for i, prompt in enumerate(prompts)
        for repeat in range(LOOPS)
    ]


def report(capsys: pytest.CaptureFixture, name: str, served: np.ndarray, replayed: np.ndarray, p: float) -> None:
    lengths = [float(counts @ np.arange(1, STEPS + 2) / counts.sum()) for counts in (served, replayed)]
    with capsys.disabled():
        print(f"\n{name}: p = {p:.3f}")
        for source, counts, length in zip(("served", "replayed"), (served, replayed), lengths, strict=True):
            print(f"  {source} AL {length:.3f}, {counts.sum():.0f} rounds by length: {np.round(counts, 1).tolist()}")


def test_a_greedy_draft_at_temperature(investigation, wiring, prompts, plain, capsys):
    """Round by round from the loop's own tokens; and by distribution from independent plain responses."""
    draft, found = investigation.draft, runs(prompts, wiring.slots, one_hot=True)
    for run in found:
        walked = walk(rollout(draft, run.sample, wiring, STEPS), STEPS)
        assert [item.length for item in walked if not item.last] == run.inner
    served = counted([length for run in found for length in run.inner])
    assert served.sum() >= 300

    def replayed(wiring: Wiring) -> np.ndarray:
        walks = [walk(rollout(draft, sample, wiring, STEPS), STEPS) for sample, _ in plain]
        return counted([item.length for walked in walks for item in walked if not item.last])

    right, wrong = (p_value(served, replayed(w)) for w in (wiring, Wiring(SERVED)))
    report(capsys, "one-hot", served, replayed(wiring), right)
    assert right > LEVEL
    assert wrong < LEVEL, "the test must tell a wrong wiring apart"


def test_a_sampled_draft_with_rejection(investigation, wiring, prompts, plain, capsys):
    """By distribution, with π along independent plain responses: expected counts vary less than a run's, so that
    counting them as one is on the safe side."""
    served = counted([length for run in runs(prompts, wiring.slots, one_hot=False) for length in run.inner])
    assert served.sum() >= 300
    kept = [acceptances(investigation, sample, wiring, logp) for sample, logp in plain]
    replayed = sum(expected(sample, a) for (sample, _), a in zip(plain, kept, strict=True))
    one_hot = [walk(rollout(investigation.draft, sample, wiring, STEPS), STEPS) for sample, _ in plain]
    other = counted([item.length for walked in one_hot for item in walked if not item.last])
    right, wrong = p_value(served, replayed), p_value(served, other)
    report(capsys, "rejection", served, replayed, right)
    assert right > LEVEL
    assert wrong < LEVEL, "the test must tell another rule apart"
