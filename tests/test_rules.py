"""Acceptance rules against analytic values and against drafting and verifying for real, on tiny Markov chains.

Target and draft are chains over a few tokens: p(x | previous) and q(x | previous). Estimators see recorded
paths of the target alone; the truth is summed over all drafts, and a loop that drafts, accepts, rejects and
draws from the residual is run beside it. Everything is seeded; statistics must agree to 4 standard errors.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from eagle3lib import rules
from eagle3lib.acceptance import acceptance
from eagle3lib.errors import InputError
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import expected_rounds, walk_lengths
from eagle3lib.rules import Scored
from eagle3lib.sample import Sample
from eagle3lib.sampling import Sampling

V, K, PATHS = 5, 3, 100_000
SAMPLING = Sampling(1.0)
RNG = np.random.default_rng


def chain(seed: int, sharpness: float) -> np.ndarray:
    """[V, V] rows of probabilities."""
    logits = sharpness * RNG(seed).normal(size=(V, V))
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


P, Q = chain(0, 1.0), chain(1, 1.2) * 0.5 + chain(0, 1.0) * 0.5
CHOICE = Q.argmax(1)  # what the draft proposes where it takes its likeliest


def draw(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One token of each row of probabilities."""
    return (rows.cumsum(1) > rng.random((len(rows), 1)) * rows.sum(1, keepdims=True)).argmax(1)


def paths(n: int, length: int, seed: int) -> np.ndarray:
    """[n, length + 1] target paths, every one from token 0."""
    rng, found = RNG(seed), np.zeros((n, length + 1), dtype=int)
    for i in range(length):
        found[:, i + 1] = draw(P[found[:, i]], rng)
    return found


def recorded(path: np.ndarray, steps: int) -> tuple[Rollout, Scored]:
    """What a rollout and a target's head would say of paths [n, L + 1]: each a turn of L starts."""
    n, length = path.shape[0], path.shape[1] - 1
    at = np.arange(length)[:, None] + np.arange(steps)  # [L, K] step k at start t reads token t + k
    valid = np.broadcast_to(at < length, (n, length, steps)).reshape(-1, steps)
    at = at.clip(max=length - 1)
    previous, following = (path[:, at + i].reshape(-1, steps) for i in (0, 1))
    entropy = -(P * np.log(P)).sum(1)

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.where(valid, values, -np.inf)).float()

    choice = CHOICE[previous]
    rollout = Rollout(
        "paths",
        starts=torch.arange(n)[:, None].mul(10 * length).add(torch.arange(length)).flatten(),
        turns=torch.arange(n).repeat_interleave(length),
        recorded=torch.from_numpy(np.where(valid, following, -1)),
        predicted=torch.from_numpy(choice),
        hit=torch.from_numpy((choice == following) & valid),
        logprob=tensor(np.log(Q[previous, following])),
        valid=torch.from_numpy(valid.copy()),
        sampling=SAMPLING,
        sampled=tensor(np.log(Q[previous, following])),
    )
    scored = Scored(
        tensor(np.log(P[previous, following])), tensor(np.log(P[previous, choice])), tensor(entropy[previous]), SAMPLING
    )
    return rollout, scored


def first_starts(n: int, seed: int) -> tuple[Rollout, Scored]:
    """Rounds from token 0 alone: one start a path, its K tokens recorded."""
    rollout, scored = recorded(paths(n, K, seed), K)
    whole = rollout.valid.all(1)
    pick = {name: getattr(rollout, name)[whole] for name in ("starts", "turns", "recorded", "predicted", "hit")}
    pick |= {name: getattr(rollout, name)[whole] for name in ("logprob", "valid", "sampled")}
    return Rollout("paths", **pick, sampling=SAMPLING), Scored(
        scored.recorded[whole], scored.drafted[whole], scored.entropy[whole], SAMPLING
    )


def every_path() -> list[tuple[int, ...]]:
    """All token paths of K steps, from token 0."""
    return [(0, *path) for path in itertools.product(range(V), repeat=K)]


def probability(table: np.ndarray, path: tuple[int, ...]) -> float:
    """Of a whole path."""
    return float(np.prod([table[a, b] for a, b in itertools.pairwise(path)]))


def analytic_match() -> list[float]:
    """P(x_1..x_k are all the draft's own choices), from token 0."""
    found, state, alive = [], 0, 1.0
    for _ in range(K):
        alive *= P[state, CHOICE[state]]
        state = CHOICE[state]
        found.append(float(alive))
    return found


def analytic_rejection() -> list[float]:
    """Σ over drafts of Π q min(1, p/q) = Π min(p, q)."""
    overlap, row, found = np.minimum(P, Q), np.eye(V)[0], []
    for _ in range(K):
        row = row @ overlap
        found.append(float(row.sum()))
    return found


def block_keep(path: tuple[int, ...]) -> list[float]:
    """p_1 .. p_K of Sun et al., algorithm 2: p_i = min(p_(i-1) p/q, 1)."""
    found, kept = [], 1.0
    for a, b in itertools.pairwise(path):
        kept = min(kept * P[a, b] / Q[a, b], 1.0)
        found.append(kept)
    return found


def analytic_block() -> list[float]:
    """Σ over drafts of q(X) p_k(X), which the paper's lemma gives for the chance that k or more are kept."""
    sums = np.zeros(K)
    for path in every_path():
        sums += probability(Q, path) * np.array(block_keep(path))
    return sums.tolist()


# Verifiers, written from the papers: drafts [n, K + 1] from their first state → accepted drafts, and the next token.


def verify_match(state: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The draft's own choices against tokens drawn from the target."""
    drafts = [state]
    for _ in range(K):
        drafts.append(CHOICE[drafts[-1]])
    tokens = np.stack(drafts, 1)
    accepted, following, open_ = np.zeros(len(state), int), np.zeros(len(state), int), np.ones(len(state), bool)
    for i in range(K + 1):
        drawn = draw(P[tokens[:, i]], rng)
        kept = open_ & (drawn == tokens[:, i + 1]) if i < K else np.zeros_like(open_)
        following = np.where(open_ & ~kept, drawn, following)
        accepted += kept
        open_ = kept
    return tokens, accepted, following


def verify_target_only(state: np.ndarray, rng: np.random.Generator, single: float = 1.0, acc: float = 1.0):
    """SGLang's kernel on a chain: coin <= p(d) / acc or p(d) >= single; else drawn from p without d."""
    drafts = [state]
    for _ in range(K):
        drafts.append(CHOICE[drafts[-1]])
    tokens = np.stack(drafts, 1)
    accepted, following, open_ = np.zeros(len(state), int), np.zeros(len(state), int), np.ones(len(state), bool)
    for i in range(K + 1):
        row = P[tokens[:, i]].copy()
        if i < K:
            p = np.take_along_axis(row, tokens[:, i + 1 : i + 2], 1)[:, 0]
            kept = open_ & ((rng.random(len(p)) <= p / acc) | (p >= single))
            np.put_along_axis(row, tokens[:, i + 1 : i + 2], 0, 1)
        else:
            kept = np.zeros_like(open_)
        following = np.where(open_ & ~kept, draw(row, rng), following)
        accepted += kept
        open_ = kept
    return tokens, accepted, following


def drafted(state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[n, K + 1] tokens drawn from the draft."""
    tokens = [state]
    for _ in range(K):
        tokens.append(draw(Q[tokens[-1]], rng))
    return np.stack(tokens, 1)


def verify_rejection(state: np.ndarray, rng: np.random.Generator):
    """Leviathan et al., algorithm 1."""
    tokens = drafted(state, rng)
    accepted, following, open_ = np.zeros(len(state), int), np.zeros(len(state), int), np.ones(len(state), bool)
    for i in range(K + 1):
        p, q = P[tokens[:, i]], Q[tokens[:, i]]
        if i < K:
            ratio = np.take_along_axis(p / q, tokens[:, i + 1 : i + 2], 1)[:, 0]
            kept = open_ & (rng.random(len(ratio)) <= ratio)
            rows = np.maximum(p - q, 0) + 1e-300
        else:
            kept, rows = np.zeros_like(open_), p
        following = np.where(open_ & ~kept, draw(rows, rng), following)
        accepted += kept
        open_ = kept
    return tokens, accepted, following


def verify_block(state: np.ndarray, rng: np.random.Generator):
    """Sun et al., algorithm 2."""
    tokens, n = drafted(state, rng), len(state)
    accepted, keep, keep_at = np.zeros(n, int), np.ones(n), [np.ones(n)]
    for i in range(1, K + 1):
        p, q = P[tokens[:, i - 1]], Q[tokens[:, i - 1]]
        keep = np.minimum(keep * np.take_along_axis(p / q, tokens[:, i : i + 1], 1)[:, 0], 1)
        keep_at.append(keep)
        if i < K:
            left = np.maximum(keep[:, None] * P[tokens[:, i]] - Q[tokens[:, i]], 0).sum(1)
            threshold = left / np.maximum(left + 1 - keep, 1e-300)
        else:
            threshold = keep
        accepted = np.where(rng.random(n) <= threshold, i, accepted)
    state, keep = np.take_along_axis(tokens, accepted[:, None], 1)[:, 0], np.stack(keep_at, 1)[np.arange(n), accepted]
    rows = np.where((accepted == K)[:, None], P[state], np.maximum(keep[:, None] * P[state] - Q[state], 0) + 1e-300)
    return tokens, accepted, draw(rows, rng)


CASES = {
    "match": (
        lambda r, s: rules.one_hot(r, sample_at(1.0), SAMPLING, SAMPLING),
        analytic_match,
        verify_match,
    ),
    "target only": (
        lambda r, s: rules.one_hot(r, sample_at(1.0), SAMPLING, SAMPLING),
        analytic_match,
        verify_target_only,
    ),
    "rejection": (rules.rejection_sampling, analytic_rejection, verify_rejection),
    "block": (rules.block_verification, analytic_block, verify_block),
}


def sample_at(temperature: float | None) -> Sample:
    """A sample that was recorded at a temperature."""
    return Sample("paths", torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool), {}, None, temperature)


@pytest.mark.parametrize("case", CASES)
def test_survival_over_all_starts_is_the_analytic_one(case):
    """Mean of a_0 .. a_(k-1) over 1e5 recorded paths, and the share of 1e5 real rounds that keep k drafts."""
    estimator, analytic, verify = CASES[case]
    chance = estimator(*first_starts(PATHS, seed=10)).chance.double().cumprod(1).numpy()
    _, accepted, _ = verify(np.zeros(PATHS, int), RNG(11))
    for k, truth in enumerate(analytic()):
        assert chance[:, k].mean() == pytest.approx(truth, abs=4 * chance[:, k].std() / PATHS**0.5), f"S_{k + 1}"
        error = (truth * (1 - truth) / PATHS) ** 0.5
        assert (accepted > k).mean() == pytest.approx(truth, abs=4 * error), f"served S_{k + 1}"


@pytest.mark.parametrize("case", CASES)
def test_no_rule_here_changes_what_is_drawn(case):
    """The verifiers above are lossless, or they would prove nothing: their first tokens are the target's."""
    tokens, accepted, following = CASES[case][2](np.zeros(PATHS, int), RNG(12))
    first = np.where(accepted > 0, tokens[:, 1], following)
    assert np.bincount(first, minlength=V) / PATHS == pytest.approx(P[0], abs=4 * 0.5 / PATHS**0.5)


LENGTH, RESPONSES = 12, 20_000


def served(verify, seed: int) -> np.ndarray:
    """[2, K + 1] rounds by kept drafts, inner and last, of real loops that make LENGTH tokens; and their spread."""
    rng, state, made = RNG(seed), np.zeros(RESPONSES, int), np.zeros(RESPONSES, int)
    histograms = np.zeros((RESPONSES, 2, K + 1))
    while (made < LENGTH).any():
        tokens, accepted, following = verify(state, rng)
        going = np.flatnonzero(made < LENGTH)
        last = made + accepted + 1 >= LENGTH
        kept = np.minimum(accepted, LENGTH - made)  # drafts beyond the end are not in a recording
        histograms[going, last[going].astype(int), kept[going]] += 1
        made[going] += accepted[going] + 1
        state = following
    return histograms


@pytest.mark.parametrize("case", CASES)
def test_the_walk_has_the_rounds_of_a_real_loop(case):
    """Expected rounds by kept drafts, inner and last, and AL: 20 000 recorded responses against as many served."""
    estimator, _, verify = CASES[case]
    found = estimator(*recorded(paths(RESPONSES, LENGTH, seed=20), K))
    predicted, real = expected_rounds(found, K).histogram, served(verify, seed=21)
    error = real.std(0) * (2 * RESPONSES) ** 0.5  # of a difference of two sums; the estimator's is no larger
    assert np.abs(predicted - real.sum(0)) == pytest.approx(np.zeros((2, K + 1)), abs=4 * error.max())
    assert (np.abs(predicted - real.sum(0)) <= 4 * error + 1e-9).all()
    inner, lengths = real[:, 0], np.arange(1, K + 2)
    mean = (inner.sum(0) @ lengths) / inner.sum()
    spread = (inner @ lengths - mean * inner.sum(1)).std() * (2 * RESPONSES) ** 0.5 / inner.sum()
    assert acceptance([found], K).walk.length.value == pytest.approx(mean, abs=4 * spread)


def test_the_recursion_is_the_walk_where_nothing_is_left_to_chance():
    """π is 0 or 1, and the rounds are the walk's, round by round."""
    rollout, _ = recorded(paths(300, LENGTH, seed=30), K)
    found = rules.one_hot(rollout, sample_at(1.0), SAMPLING, SAMPLING)
    expected = expected_rounds(found, K)
    rounds = walk_lengths(
        rollout.starts, rollout.turns, rollout.hit.int().cumprod(1).sum(1).numpy(), rollout.valid.sum(1).numpy(), K
    )
    assert set(expected.starting.tolist()) == {0.0, 1.0}
    assert rollout.starts[torch.from_numpy(expected.starting == 1)].tolist() == [r.start for r in rounds]
    for last in (0, 1):
        assert expected.histogram[last].tolist() == [
            sum(r.accepted == a and r.last == bool(last) for r in rounds) for a in range(K + 1)
        ]


def test_block_verification_never_keeps_fewer():
    """Sun et al., theorem 2: start by start the chance to keep k drafts is at least that of rejection sampling."""
    rollout, scored = first_starts(5000, seed=40)
    token, block = (f(rollout, scored).chance.cumprod(1) for f in (rules.rejection_sampling, rules.block_verification))
    assert (block >= token - 1e-9).all()
    assert (block[:, 1:] > token[:, 1:] + 0.01).any()
    assert torch.allclose(block[:, 0], token[:, 0])


@pytest.mark.parametrize(("single", "acc"), [(1.0, 0.6), (0.3, 1.0), (0.25, 0.5)])
def test_thresholds_below_one_are_right_at_step_0(single, acc):
    """SGLang's kernel run for real; beyond step 0 the number is labelled."""
    found = rules.thresholds(*first_starts(PATHS, seed=50), single, acc)
    _, accepted, _ = verify_target_only(np.zeros(PATHS, int), RNG(51), single, acc)
    truth = found.chance[:, 0].mean().item()
    assert (accepted > 0).mean() == pytest.approx(truth, abs=4 * (truth * (1 - truth) / PATHS) ** 0.5 + 1e-9)
    assert found.exact_steps == 1
    assert acceptance([found], K).approximate


def test_thresholds_of_one_are_no_approximation():
    """Then the rule is the match, and asking for an approximation is a slip."""
    with pytest.raises(ValueError, match="exactly where a one-hot draft matches"):
        rules.thresholds(*first_starts(10, seed=1), 1.0, 1.0)


def test_typical_acceptance_by_hand():
    """Token 0's draft is kept where p(d) > min(ε, α e^-H): a choice on each side of the limit."""
    rollout, scored = first_starts(10, seed=60)
    p = P[0, CHOICE[0]]
    limit = np.exp((P[0] * np.log(P[0])).sum())  # e^-H
    for alpha, kept in ((0.99 * p / limit, True), (1.01 * p / limit, False)):
        found = rules.typical_acceptance(rollout, scored, epsilon=1.0, alpha=float(alpha))
        assert found.chance[:, 0].all() == kept
        assert found.chance[:, 0].any() == kept
        assert acceptance([found], K).approximate
    assert rules.typical_acceptance(rollout, scored, epsilon=float(p) - 1e-4, alpha=9.0).chance[:, 0].all()


def test_lossless_rules_are_not_labelled_approximate():
    """The label means something only where it is absent elsewhere."""
    rollout, scored = first_starts(50, seed=70)
    for name in CASES:
        assert not acceptance([CASES[name][0](rollout, scored)], K).approximate


def test_another_temperature_or_truncation_than_the_recording_s_is_refused():
    """As the case states it, and where it states none."""
    rollout, _ = first_starts(5, seed=80)
    for sample, asked, stated, words in (
        (sample_at(None), SAMPLING, SAMPLING, "is not stated"),
        (sample_at(0.8), SAMPLING, SAMPLING, "recorded with temperature 0.8, and acceptance .* under temperature 1"),
        (sample_at(1.0), Sampling(0.8), SAMPLING, "recorded with temperature 1, .* under temperature 0.8"),
        (sample_at(1.0), Sampling(1.0, top_p=0.9), SAMPLING, "temperature 1, and .* temperature 1, top-p 0.9"),
    ):
        with pytest.raises(InputError, match=words):
            rules.one_hot(rollout, sample, asked, stated)


def test_probabilities_that_were_not_rolled_out_are_missed():
    """Rejection sampling needs the draft's q."""
    rollout, scored = first_starts(5, seed=81)
    bare = Rollout(**{**vars(rollout), "sampled": None, "sampling": None})
    with pytest.raises(ValueError, match="roll out with a sampling"):
        rules.rejection_sampling(bare, scored)
