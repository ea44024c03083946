"""Acceptance along the context, and what each engine does beyond the draft's own number of positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from bundled import CASE
from test_sequential import echoing

from eagle3lib import load_case
from eagle3lib.acceptance import walk
from eagle3lib.boundaries import Wiring
from eagle3lib.checks.context import check_context
from eagle3lib.context import length_by_position, sides
from eagle3lib.ecosystems import ENGINES
from eagle3lib.findings import Severity
from eagle3lib.investigation import Investigation
from eagle3lib.rollout import Rollout, rollout

K, LIMIT = 3, 30
WIRING = Wiring(toys.SLOTS)


def drawn(seed: int, before: float, beyond: float, n: int = 60) -> Rollout:
    """Hits with one chance before pair `LIMIT` and another from there on."""
    chances = torch.where(torch.arange(n) < LIMIT, before, beyond)[:, None]
    hits = torch.rand(n, K, generator=toys.generator(seed)) < chances
    return toys.hand_rollout(hits.tolist(), name=str(seed))


def codes(findings) -> dict[str, Severity]:
    return {f.code: f.severity for f in findings}


def test_length_by_position_counts_every_round_but_the_last_in_its_bin():
    walks = [walk(drawn(seed, 0.6, 0.3), K) for seed in range(5)]
    found = dict(length_by_position(walks, [0, 10, 30, 60, 90]))
    for low, high in ((0, 10), (10, 30), (30, 60)):
        lengths = [item.length for own in walks for item in own if not item.last and low <= item.start < high]
        assert found[(low + high) / 2].value == pytest.approx(np.mean(lengths))
        assert found[(low + high) / 2].count == len(lengths)
    assert 75 not in found


def test_the_sides_of_a_limit_by_hand():
    """Against a loop over starts: a start is beyond when its last step's position is."""
    rollouts = [drawn(seed, 0.7, 0.2) for seed in range(4)]
    found = sides(rollouts, LIMIT, K)
    for beyond, value in ((False, found.before), (True, found.beyond)):
        length, starts = 1.0, 0
        for k in range(K):
            alive = possible = 0
            for r in rollouts:
                for row, t in enumerate(r.starts.tolist()):
                    if (t + K - 1 >= LIMIT) == beyond and r.valid[row, k]:
                        possible += 1
                        alive += bool(r.hit[row, : k + 1].all())
            length += alive / possible
            starts = starts or possible
        assert value.value == pytest.approx(length)
        assert value.count == starts
    assert found.paired == 4
    assert found.lost.low > 0


def test_only_samples_with_both_sides_are_paired():
    short = toys.hand_rollout([[1, 1, 1]] * 8, name="short")
    long = drawn(1, 0.5, 0.5)
    found = sides([short, long], LIMIT, K)
    assert found.paired == 1
    assert found.lost.value == pytest.approx(sides([long], LIMIT, K).lost.value)
    assert sides([short], LIMIT, K).paired == 0
    with pytest.raises(ValueError, match="3 steps"):
        sides([], LIMIT, K)


@pytest.mark.parametrize(
    ("rollouts", "severity", "words"),
    [
        ([(0.8, 0.1)] * 8, Severity.RISK, "is worse"),
        ([(0.1, 0.8)] * 8, Severity.OK, "is no worse"),
        ([(0.5, 0.5)] * 8, Severity.NOTE, "no different"),
        ([(0.8, 0.1)] * 7, Severity.NOTE, "Cannot tell"),
    ],
)
def test_what_is_said_of_the_draft_beyond_its_limit(rollouts, severity, words):
    found = sides([drawn(i, *chances) for i, chances in enumerate(rollouts)], LIMIT, K)
    finding = check_context(LIMIT, 62, None, None, found)[1]
    assert (finding.code, finding.severity) == ("served.beyond_context", severity)
    assert words in finding.title


def test_a_draft_that_fails_beyond_its_limit_is_named_and_a_sound_one_is_not(draft):
    """Tokens that the draft itself says, everywhere or up to the limit only; K = 3."""
    sound = [replace(echoing(draft, WIRING, steps=6, seed=seed, turns=((2, 58),)), name=str(seed)) for seed in range(8)]
    for broken, severity in ((False, Severity.NOTE), (True, Severity.RISK)):
        samples = sound
        if broken:
            other = toys.make_sample(77, length=len(sound[0].token_ids)).token_ids
            samples = [replace(s, token_ids=torch.cat([s.token_ids[:LIMIT], other[LIMIT:]])) for s in sound]
        found = sides([rollout(draft, s, WIRING, K) for s in samples], LIMIT, K)
        assert codes(check_context(LIMIT, 62, None, None, found))["served.beyond_context"] == severity


@pytest.mark.parametrize(
    ("engine", "version", "outcome", "severity"),
    [
        ("sglang", "0.5.23", "stops", Severity.RISK),
        ("vllm", None, "served", Severity.NOTE),
        ("vllm", "0.24.0", "unsafe", Severity.FAULT),
        ("vllm", "0.25.0", "served", Severity.NOTE),
        ("vllm_v1_runner", "0.33.0", "undrafted", Severity.FAULT),
        ("vllm_v1_runner", "0.24.0", "unsafe", Severity.FAULT),
        ("llama_cpp", None, "served", Severity.NOTE),
        ("tensorrt_llm", None, "unknown", Severity.RISK),
    ],
)
def test_what_each_engine_does_beyond_the_limit(engine, version, outcome, severity):
    (finding,) = check_context(2048, 5000, ENGINES[engine], version, None)
    assert (finding.severity, finding.evidence["outcome"]) == (severity, outcome)
    assert "2048" in finding.title
    assert "2048" in finding.meaning
    assert bool(finding.remedy) == (outcome != "served")


def test_within_the_limit_and_without_one():
    assert codes(check_context(64, 64, ENGINES["sglang"], None, None)) == {"served.context": Severity.OK}
    (finding,) = check_context(None, 64, ENGINES["sglang"], None, None)
    assert finding.title.startswith("Cannot tell")
    assert codes(check_context(64, 65, None, None, None)) == {"served.context": Severity.RISK}


def test_the_bundled_case_is_within_its_draft_s_positions():
    investigation = Investigation(load_case(CASE), "cpu")
    longest = max(len(sample.token_ids) for sample in investigation.samples(investigation.trained.wiring.slots))
    findings = check_context(investigation.draft.config.max_positions, longest, ENGINES["sglang"], "0.5.23", None)
    assert codes(findings) == {"served.context": Severity.OK}
