"""Values of a dump: each planted slip is named at its boundary, and the bundled dumps are silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import toys
from bundled import CASE
from complaints import complaint

from eagle3lib import load_case
from eagle3lib.checks.values import check_values
from eagle3lib.findings import Severity
from eagle3lib.hygiene import measure_values
from eagle3lib.investigation import Investigation
from eagle3lib.norms import OUTLIER_RATIO, norm_profile
from eagle3lib.sample import Sample
from eagle3lib.target import load_target


@pytest.fixture(scope="module")
def inv() -> Investigation:
    return Investigation(load_case(CASE), "cpu")


def samples_of(inv: Investigation, name: str) -> list[Sample]:
    section = next(s for s in inv.case.dumps if s.name == name)
    return list(inv.open(section))


@pytest.fixture(scope="module")
def five(inv: Investigation) -> list[Sample]:
    return samples_of(inv, "five")[:3]


def changed(samples: list[Sample], boundary, change: Callable[[torch.Tensor], torch.Tensor]) -> list[Sample]:
    """The second sample's state at one boundary, changed."""
    own = samples[1]
    states = dict(own.states) | {boundary: change(own.states[boundary].clone())}
    return [samples[0], replace(own, states=states), *samples[2:]]


@pytest.mark.parametrize("name", ["five", "every", "listed", "sampled"])
def test_bundled_dumps_are_silent(inv: Investigation, name: str) -> None:
    found = check_values(name, measure_values(iter(samples_of(inv, name)), inv.target))
    assert [f.code for f in found] == ["dump.values_sound"]
    assert found[0].evidence["values"] == sum(
        state.numel() for sample in samples_of(inv, name) for state in sample.states.values()
    )


def _nan(state: torch.Tensor) -> torch.Tensor:
    state[7, 3] = torch.nan
    state[9, 4] = torch.inf
    return state


def _zero(state: torch.Tensor) -> torch.Tensor:
    state[::24] = 0
    return state


def _repeat(state: torch.Tensor) -> torch.Tensor:
    state[40] = state[39]
    return state


def _one_row(state: torch.Tensor) -> torch.Tensor:
    return state[30].expand_as(state).clone()


@pytest.mark.parametrize(
    ("boundary", "change", "code", "count"),
    [
        (16, _nan, "dump.non_finite", 2),
        (3, _zero, "dump.zero_rows", 9),
        (28, _repeat, "dump.repeated_rows", 1),
        (28, _one_row, "dump.repeated_rows", None),
        (0, _repeat, "dump.repeated_rows", 1),
    ],
)
def test_a_planted_slip_is_named_at_its_boundary(five, boundary, change, code: str, count: int | None) -> None:
    found = check_values("five", measure_values(changed(five, boundary, change)))
    assert [(f.code, f.severity) for f in found] == [(code, Severity.FAULT)]
    assert found[0].evidence["boundaries"] == [boundary]
    rows = len(five[1].states[boundary])
    assert found[0].evidence["counts"] == [rows - 1 if count is None else count]


def test_float16_that_overflows_is_named_and_one_that_does_not_is_silent(five) -> None:
    """B(16) holds an attention sink of norm 25000; ten times that leaves float16."""
    found = check_values("five", measure_values(changed(five, 16, lambda s: (s.float() * 10).half())))
    assert {"dump.saturated", "dump.non_finite"} <= {f.code for f in found}
    clamped = measure_values(changed(five, 16, lambda s: (s.float() * 10).clamp(-65504, 65504)))
    assert "dump.saturated" in {f.code for f in check_values("five", clamped)}
    fits = check_values("five", measure_values([*changed(five, 16, lambda s: s.half())]))
    assert [f.code for f in fits] == ["dump.values_sound"]


def test_values_whose_squares_overflow_are_finite() -> None:
    sample = toys.make_sample()
    huge = replace(sample, states={1: sample.states[1] * 1e30})
    values = measure_values([huge]).states[1]
    assert (values.non_finite, values.non_finite_rows) == (0, 0)
    torch.testing.assert_close(values.largest, float(huge.states[1].double().norm(dim=-1).max()), rtol=1e-5, atol=0)


def test_constant_channels_are_named(five) -> None:
    def cut(state: torch.Tensor) -> torch.Tensor:
        state[:, 500:] = 0
        return state

    every = [replace(s, states=dict(s.states) | {16: cut(s.states[16].clone())}) for s in five]
    found = check_values("five", measure_values(every))
    assert [(f.code, f.severity) for f in found] == [("dump.constant_channels", Severity.RISK)]
    assert found[0].evidence["counts"] == [76]
    assert found[0].evidence["channels"][0] == 500


def test_a_rotated_target_has_no_outlier_channels(five) -> None:
    """A random rotation of every state, as QuaRot's, keeps norms and angles and takes the outliers away."""
    turn = torch.linalg.qr(torch.randn(576, 576, generator=toys.generator(3)))[0]
    turned = [replace(s, states={b: h.float() @ turn for b, h in s.states.items()}) for s in five]
    found = check_values("five", measure_values(turned))
    assert [f.code for f in found] == ["dump.values_sound", "dump.no_outlier_channels"]
    assert max(found[1].evidence["largest_channel_ratios"]) < OUTLIER_RATIO * 0.6


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_scaled_state_stands_out_of_the_profile(five, factor: float) -> None:
    scaled = [replace(s, states=dict(s.states) | {16: s.states[16] * factor}) for s in five]
    found = check_values("five", measure_values(scaled))
    assert [(f.code, f.severity) for f in found] == [("dump.norm_out_of_profile", Severity.RISK)]
    assert found[0].evidence["boundaries"] == [16]


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (slice(64, None), "the first 64 lack one"),
        (slice(None, -20), "the last 20 lack one"),
    ],
)
def test_missing_rows_are_told_by_the_embedding(inv: Investigation, five, cut: slice, words: str) -> None:
    """Rows that a prefix cache held, and rows that were cut at the end."""
    short = replace(five[1], states={b: h[cut] for b, h in five[1].states.items()})
    found = check_values("five", measure_values([five[0], short], inv.target))
    assert [f.code for f in found] == ["dump.rows_missing"]
    assert words in found[0].title
    assert five[1].name in found[0].title
    blind = check_values("five", measure_values([five[0], short]))
    assert "cannot be told" in blind[0].title


def test_more_rows_than_tokens_are_refused(five) -> None:
    long = replace(five[0], token_ids=five[0].token_ids[:50], loss_mask=five[0].loss_mask[:50])
    complaint(lambda: measure_values([long]), five[0].name, "at most 50 rows", "dump again")


def test_a_state_of_another_width_is_refused(five) -> None:
    wide = changed(five, 16, lambda s: s[:, :500])
    complaint(lambda: measure_values(wide), five[1].name, "576", "500", "B(16)")


def test_profile_equals_quantiles_of_the_norms(inv: Investigation) -> None:
    """The histogram's quantiles against torch's on all norms at once, to the width of a bin."""
    samples = samples_of(inv, "five")
    profile = norm_profile(measure_values(iter(samples))).set_index("boundary")
    for boundary in (0, 3, 16, 28, 30):
        norms = torch.cat([s.states[boundary].float().norm(dim=-1) for s in samples])
        expected = torch.quantile(norms, torch.tensor([0.0, 0.05, 0.5, 0.95, 1.0])).tolist()
        row = profile.loc[boundary]
        assert row[["smallest", "largest"]].tolist() == pytest.approx([expected[0], expected[4]], rel=1e-5)
        assert row[["p5", "median", "p95"]].tolist() == pytest.approx(expected[1:4], rel=0.011)
        states = torch.cat([s.states[boundary].float() for s in samples])
        rms = states.square().mean(0).sqrt()
        assert row["largest_channel_ratio"] == pytest.approx(float((rms / rms.median()).max()), rel=1e-4)


def test_random_toy_states_and_an_empty_dump() -> None:
    codes = {f.code for f in check_values("toy", measure_values([toys.make_sample(1), toys.make_sample(2)]))}
    assert codes == {"dump.values_sound", "dump.no_outlier_channels"}
    assert [f.code for f in check_values("none", measure_values([]))] == ["dump.empty"]


def test_a_run_of_one_token_at_the_beginning_may_repeat_its_states() -> None:
    """Attention over equal values gives equal values, so rows of a leading run are equal at every depth."""
    sample = toys.make_sample()
    token_ids = sample.token_ids.clone()
    token_ids[:4] = token_ids[0]
    states = {b: torch.cat([h[:1].expand(4, -1), h[4:]]) for b, h in sample.states.items()}
    values = measure_values([replace(sample, token_ids=token_ids, states=states)])
    assert all(state.repeated_rows == 0 for state in values.states.values())


def test_the_embedding_under_another_name_repeats_no_row(tmp_path) -> None:
    """Equal tokens have equal rows there, which is no slip; a row of another token still is."""
    target = load_target(toys.write_target(tmp_path))
    sample = toys.make_sample()
    token_ids = sample.token_ids % 7
    state = target.embed(token_ids)
    renamed = replace(sample, token_ids=token_ids, states={3: state})
    assert measure_values([renamed], target).states[3].repeated_rows == 0
    assert measure_values([renamed]).states[3].repeated_rows > 0
    copied = replace(renamed, states={3: _repeat_at(state, token_ids)})
    assert measure_values([copied], target).states[3].repeated_rows > 0


def _repeat_at(state: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """The second row of one token replaced by a row of another."""
    state = state.clone()
    i = int((token_ids[1:] != token_ids[:-1]).nonzero()[0])
    state[i + 1] = state[i]
    return state
