"""What each system would print of a small run, against its own arithmetic worked out by hand."""

from __future__ import annotations

import pytest
import toys
from test_acceptance import NINE

from eagle3lib.printed import counts, printed
from eagle3lib.rollout import Rollout

# NINE at K = 3: rounds accept 2, 3 and, at the turn's end, 2 of the 2 tokens left; they commit 3, 4 and 2 tokens.
# The second response has one turn of two starts and one round: its draft is wrong, and another after it right.
SECOND = [[0, 1, 0], [1, 0, 0]]


@pytest.fixture
def run() -> list[Rollout]:
    """Ten tokens made by three rounds after the prefill's, and two made by two."""
    return [toys.hand_rollout(NINE), toys.hand_rollout(SECOND, name="other")]


#: Over all starts of both: 11, 9 and 7 can be checked at steps 0, 1, 2; 8, 5 and 2 chains are alive; 8, 7 and 5
#: drafts are right whatever came before.
HAND = {
    ("SGLang", "accept len"): (9 + 2) / 5,
    ("SGLang", "accept rate"): (2 + 3 + 1 + 0 + 0) / (5 * 3),
    ("SGLang", "spec_accept_length"): (10 / 3 + 3 / 2) / 2,
    ("SGLang", "spec_accept_rate"): (6 / 9 + 0 / 6) / 2,
    ("vLLM", "Mean acceptance length"): 1 + (2 + 3 + 2 + 0 + 1) / 5,
    ("vLLM", "Per-position acceptance rate"): (4 / 5, 3 / 5, 1 / 5),
    ("vLLM", "Avg Draft acceptance rate"): 8 / 15,
    ("EAGLE", "tau"): 11 / 5,
    ("EAGLE", "n-alpha"): (4 / 5, 3 / 3, 1 / 2),
    ("TensorRT-LLM", "avg_decoded_tokens_per_iter"): (10 / 4 + 3 / 3) / 2,
    ("TensorRT-LLM", "acceptanceRate"): 8 / 15,
    ("llama.cpp", "mean acceptance length"): 1 + 8 / 5,
    ("llama.cpp", "acceptance per position"): (4 / 5, 3 / 5, 1 / 5),
    ("SpecForge", "eval/simulated_acc_len"): 8 / 11 + 8 / 11 * 7 / 9 + 8 / 11 * 7 / 9 * 5 / 7,
    ("speculators", "full_acc"): (8 / 11, 4 / 9, 2 / 7),
    ("speculators", "cond_acc"): (8 / 11, 4 / 8, 2 / 4),
    ("NeMo", "tau_sim"): 1 + 8 / 11 + 4 / 9 + 2 / 7,
}


def test_every_system_s_number_is_its_own_arithmetic(run):
    """All of them, each by hand; and none without a hand-made number."""
    found = {(row.system, row.name): row.value for row in printed(run, 3)}
    assert found.keys() == HAND.keys()
    for name, value in HAND.items():
        assert found[name] == pytest.approx(value), name


def test_every_number_says_what_it_is(run):
    """Definition, average and bonus stand beside each."""
    for row in printed(run, 3):
        assert len(row.definition) > 10
        assert row.over in ("rounds", "requests", "all starts")
        assert row.bonus in ("included", "left out", "–")


def test_the_end_of_a_response_inside_a_round_is_counted_by_some_and_dropped_by_others(run):
    """The verifier accepted 2 drafts in the first response's last round, of which both stand and no bonus does."""
    found = counts(run[:1], 3)
    assert found.accepted[0].tolist() == [2, 3, 2]
    assert found.committed[0].tolist() == [3, 4, 2]


def test_turns_are_requests():
    """Two turns of a conversation are two requests to a server."""
    assert len(counts([toys.hand_rollout(NINE + SECOND, [9, 2])], 3).accepted) == 2


def test_simulated_acc_len_is_specforge_s_own():
    """The package's function on the same per-position rates."""
    evaluator = pytest.importorskip("specforge.eval.evaluator")
    row = next(r for r in printed([toys.hand_rollout(NINE)], 3) if r.system == "SpecForge")
    run = counts([toys.hand_rollout(NINE)], 3)
    own = evaluator.Evaluator._simulated_acc_len((run.hits / run.starts).tolist())
    assert row.value == pytest.approx(own)
