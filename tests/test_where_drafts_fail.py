"""Token classes, examples with coloured tokens, and the conditions of exactness."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
import toys
from bundled import CASE
from test_acceptance import NINE

from eagle3lib import load_case, rules
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.conditions import conditions
from eagle3lib.errors import InputError
from eagle3lib.examples import SHORTEST, examples, examples_html, stretches
from eagle3lib.readings import Reading
from eagle3lib.reconstruction import Reconstruction
from eagle3lib.rollout import Rollout, rollout
from eagle3lib.rounds import walk
from eagle3lib.sampling import Sampling, distribution
from eagle3lib.target import load_target
from eagle3lib.token_classes import FIRST, acceptance_by_class, token_class

K = 3


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" the", "word"), ("▁the", "word"), ("ing", "inside a word"), (" Paris", "name or capitalised"),
        ("42", "number"), (" 3.14", "number"), (",", "punctuation"), (" —", "punctuation"), (" ", "whitespace"),
        ("\n\n", "line break"), ("<|im_end|>", "special"), (" self_attn", "code"), ("()", "code"), ("{", "code"),
        (" camelCase", "code"),
        ("\ufffd", "part of a character"), ("", "whitespace"), (" é", "word"), ("don't", "other"),
    ],
)  # fmt: skip
def test_kinds_of_tokens(text, name):
    """By the token's own text."""
    assert token_class(text) == name


def numbered(rollout: Rollout) -> Rollout:
    """The same with the pair's place as the recorded token, so that places can be told."""
    n, steps = rollout.hit.shape
    recorded = (torch.arange(n)[:, None] + torch.arange(steps)).masked_fill(~rollout.valid, -1)
    return replace(rollout, recorded=recorded)


def test_the_kind_that_ends_rounds_is_found():
    """Drafts of digits alone are wrong: they end every round, and only they have a first-step rate of 0."""
    hits = [[int((i + k) % 7 not in (0, 3)) for k in range(K)] for i in range(1, 71)]
    rollouts = [replace(numbered(toys.hand_rollout(hits)), sample=f"s{i}") for i in range(3)]
    found = acceptance_by_class(rollouts, lambda token: "7" if (token + 1) % 7 in (0, 3) else " word", K)
    kinds = {c.name: c for c in found}
    assert found[0].name == "number"
    assert (kinds["number"].first_step.value, kinds["word"].first_step.value) == (0, 1)
    assert kinds["number"].ended == 1
    assert kinds["number"].n_ended == sum(r.accepted < K and not r.cut for one in rollouts for r in walk(one, K))
    assert kinds[FIRST].first_step.count == 3
    assert sum(c.share for c in found) == pytest.approx(1)
    assert kinds["number"].share == pytest.approx(20 / 70)
    assert {kinds[FIRST].n_ended, kinds["word"].n_ended} == {0}
    assert [c.name for c in found[1:]] == sorted([FIRST, "word"])  # ties stand alike in every run


def test_tokens_of_a_response_carry_the_step_that_drafted_them():
    """NINE: rounds of 3, 4 and 2 tokens, the last of which has no bonus."""
    (found,) = stretches(numbered(toys.hand_rollout(NINE)), K)
    assert found.tokens == tuple(range(9))
    assert found.steps == (1, 2, 0, 1, 2, 3, 0, 1, 2)
    assert found.length == 3


def test_stretches_cover_every_turn_once():
    """Cut at whole rounds, never across turns."""
    hits = torch.randint(0, 2, (300, K), generator=toys.generator(2)).tolist()
    one = numbered(toys.hand_rollout(hits, [200, 100]))
    found = stretches(one, K)
    assert [t for s in found for t in s.tokens] == list(range(300))
    assert all(max(s.tokens) < 200 or min(s.tokens) >= 200 for s in found)


def test_worst_and_best_share_nothing():
    """Even where there are few."""
    hits = torch.randint(0, 2, (300, K), generator=toys.generator(3)).tolist()
    worst, best = examples([numbered(toys.hand_rollout(hits))], K, count=20)
    assert worst
    assert best
    assert not {s.tokens for s in worst} & {s.tokens for s in best}
    assert max(s.length for s in worst) <= min(s.length for s in best)
    assert all(len(s.tokens) >= SHORTEST for s in worst + best)


class Tags(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


HOSTILE = "</span><script>alert('&')</script>"


def test_foreign_text_is_escaped_and_can_be_hidden():
    """Tokens and names from files: no tag of theirs comes through, and hidden pages hold neither."""
    one = replace(numbered(toys.hand_rollout(NINE)), sample=HOSTILE)
    page = examples_html(stretches(one, K), lambda token: HOSTILE, HOSTILE, K)
    parsed = Tags(page)
    assert "script" not in parsed.tags
    assert HOSTILE in parsed.text
    assert page.count("<span") == page.count("</span>")
    hidden = examples_html(stretches(one, K), lambda token: HOSTILE, "examples", K, hide_text=True)
    assert "alert" not in hidden
    assert "draft 2" in hidden, "the legend and the steps stay"


# The target's probabilities along a path


@pytest.fixture
def toy(tmp_path):
    """A draft, its target and one sampled sample of theirs."""
    draft = load_draft(toys.write_draft(tmp_path / "draft"), device="cpu")
    target = load_target(toys.write_target(tmp_path / "target"))
    sample = replace(toys.make_sample(), temperature=1.0)
    return draft, target, sample


def test_a_path_is_scored_row_by_row(toy):
    """p of recorded and drafted tokens at every start and step, against whole rows of the head; q likewise."""
    draft, target, sample = toy
    sampling = Sampling(1.0)
    found = rollout(draft, sample, Wiring(toys.SLOTS), K, sampling)
    scored = rules.score(found, sample, target, toys.N_LAYERS, sampling, sampling)
    head = target.head_rows(torch.arange(toys.VOCABULARY))
    rows = target.final_norm(sample.states[toys.N_LAYERS]) @ head.T
    logp = rows.log_softmax(-1)
    for s, t in enumerate(found.starts.tolist()):
        for k in range(K):
            if not found.valid[s, k]:
                assert scored.recorded[s, k] == -torch.inf
                continue
            row = logp[t + 1 + k]
            assert scored.recorded[s, k] == pytest.approx(row[found.recorded[s, k]].item(), abs=1e-5)
            assert scored.drafted[s, k] == pytest.approx(row[found.predicted[s, k]].item(), abs=1e-5)
            assert scored.entropy[s, k] == pytest.approx(-(row.exp() * row).sum().item(), abs=1e-4)
    assert torch.equal(found.sampled.isfinite(), found.logprob.isfinite())
    known = found.logprob.isfinite()
    torch.testing.assert_close(found.sampled[known], found.logprob[known])


def test_a_draft_s_temperature_is_its_own(toy):
    """log q under a temperature is that of the whole draft row."""
    draft, _, sample = toy
    warm = rollout(draft, sample, Wiring(toys.SLOTS), 1, Sampling(2.0))
    plain = rollout(draft, sample, Wiring(toys.SLOTS), 1)
    assert plain.sampled is None
    assert torch.equal(warm.logprob, plain.logprob)
    known = warm.logprob.isfinite()
    assert (warm.sampled - warm.logprob)[known].abs().max() > 0.1


def test_tokens_that_a_truncation_cannot_draw_refuse_it(toy):
    """Recorded without a cut, asked for with one: the tokens themselves tell, whatever the case states."""
    draft, target, sample = toy
    sampling = Sampling(1.0, top_k=3)
    found = rollout(draft, sample, Wiring(toys.SLOTS), K, sampling)
    with pytest.raises(InputError, match="cannot be drawn with temperature 1, top-k 3"):
        rules.score(found, sample, target, toys.N_LAYERS, sampling, sampling)


def test_the_toy_s_rows_are_no_point_masses(toy):
    """Or the comparisons above would show nothing."""
    _, target, sample = toy
    head = target.head_rows(torch.arange(toys.VOCABULARY))
    rows = target.final_norm(sample.states[toys.N_LAYERS]) @ head.T
    assert distribution(rows, torch.zeros(len(rows), 1).long(), Sampling(1.0)).entropy.mean() > 0.5


# Conditions


def last_state(on_policy: float, error: float | None) -> Reconstruction:
    """What 400 tokens say of the last state."""
    return Reconstruction(5, 0.0, (Reading(0, 0, -0.2, on_policy, error, None, 400),))


def listed(**changes) -> dict[str, str]:
    """Status by condition, of a healthy greedy replay with changes."""
    sample = changes.pop("sample", toys.make_sample())
    given = {"last": last_state(0.999, None)} | changes
    last = given.pop("last")
    return {c.name: c.status for c in conditions(load_case(CASE), [sample], last, **given)}


def test_conditions_of_a_healthy_replay():
    """What can be seen holds; what no file shows is said not to be checked; nothing is violated."""
    case, rollouts = load_case(CASE), [toys.hand_rollout(NINE)]
    case = case.model_copy(update={"served": case.served.model_copy(update={"steps": K})})
    last = last_state(0.999, None)
    found = conditions(case, [toys.make_sample()], last, rollouts=rollouts, steps=K)
    status = {c.name: c.status for c in found}
    assert "violated" not in status.values()
    assert (
        status["tokens are the target's own"] == status["greedy decoding"] == status["ends of turns apart"] == "holds"
    )
    assert status["no penalties or grammar"] == "not checked"
    assert "1 last rounds are left out, 1 of them ended inside the draft" in str(found[-2])


def test_every_condition_that_can_be_checked_is_seen_violated():
    """Planted one by one; the sentence says what to expect."""
    own = "tokens are the target's own"
    assert listed(last=None)[own] == "not checked"
    assert listed(last=last_state(0.7, None))[own] == "violated"
    sampled = Sampling(0.8)
    warm = replace(toys.make_sample(), temperature=0.8)
    assert listed(sample=warm, sampling=sampled)[own] == "not checked"
    assert listed(sample=warm, sampling=sampled, last=last_state(0.6, 0.01))[own] == "holds"
    assert listed(sample=warm, sampling=sampled, last=last_state(0.6, 0.4))[own] == "violated"
    assert listed(sample=warm)["greedy decoding"] == "violated"
    assert listed(sample=replace(warm, temperature=None))["greedy decoding"] == "not checked"
    assert listed(sample=warm, sampling=sampled)["drawn with temperature 0.8"] == "holds"
    numerics = "states of the server's numerics"
    assert listed()[numerics] == "not checked"
    assert listed(flips=0.0)[numerics] == "holds"
    assert listed(flips=0.002)[numerics] == "violated"
    served = load_case(CASE).served.steps
    assert listed(steps=served + 1 if served else 1)["constant draft length"] == (
        "violated" if served else "not checked"
    )


def test_windows_and_positions_that_are_reached_are_told(tmp_path):
    """A sample of 36 tokens within 128 positions, and beyond 20."""
    name = "within the draft's window and positions"
    for limit, status in ((128, "holds"), (20, "violated")):
        config = load_draft(toys.write_draft(tmp_path / str(limit)), device="cpu").config
        assert listed(draft=replace(config, max_positions=limit))[name] == status
        assert listed(draft=replace(config, windows=(limit,), max_positions=None))[name] == status
    assert listed()[name] == "not checked"
