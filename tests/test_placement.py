"""Which boundary a state is of: planted swaps, copies and shifts are named, and the bundled dumps stand as stated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from bundled import CASE

from eagle3lib import load_case
from eagle3lib.anchors import embedding_matches, last_matches
from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.checks.anchors import check_embedding, check_last_as_aux, embedding_boundary
from eagle3lib.checks.placement import GAIN, check_identity, check_placement
from eagle3lib.depth_order import misplaced, order
from eagle3lib.findings import Finding, Severity
from eagle3lib.investigation import Investigation
from eagle3lib.placement import FEW_ROWS, Placement, identify, place
from eagle3lib.sample import Sample


@pytest.fixture(scope="module")
def inv() -> Investigation:
    return Investigation(load_case(CASE), "cpu")


def samples_of(inv: Investigation, name: str) -> list[Sample]:
    return list(inv.open(next(s for s in inv.case.dumps if s.name == name)))


@pytest.fixture(scope="module")
def five(inv: Investigation) -> list[Sample]:
    return samples_of(inv, "five")[:6]


@pytest.fixture(scope="module")
def every(inv: Investigation) -> list[Sample]:
    return samples_of(inv, "every")


def restated(samples: list[Sample], true: Mapping[Boundary, Boundary]) -> list[Sample]:
    """The samples with the state of boundary `true[b]` stated as b."""
    return [replace(s, states={b: s.states[t] for b, t in true.items()}) for s in samples]


def same(boundaries, **changes: int) -> dict[Boundary, Boundary]:
    """Each boundary its own but for the changes, `b16=28` standing for 28's state under 16."""
    return {b: b for b in boundaries} | {int(name[1:]): true for name, true in changes.items()}


def checked(samples: list[Sample], n_layers: int = 30) -> list[Finding]:
    return check_placement("planted", place(iter(samples)), n_layers)


STORED = (0, 3, 16, 28, 30)


@pytest.mark.parametrize(
    ("name", "code", "severity"),
    [
        ("five", "dump.ids_unproved", Severity.NOTE),
        ("every", "dump.order_proved", Severity.OK),
        ("listed", "dump.ids_unproved", Severity.NOTE),
        ("sampled", "dump.ids_unproved", Severity.NOTE),
    ],
)
def test_bundled_dumps_stand_as_stated(inv: Investigation, name: str, code: str, severity: Severity) -> None:
    samples = samples_of(inv, name)
    matches = embedding_matches(inv.target, iter(samples), list(samples[0].states))
    found = check_placement(name, place(iter(samples)), 30, embedding_boundary(matches))
    assert [(f.code, f.severity) for f in found] == [(code, severity)]
    assert [f.code for f in check_embedding(name, matches)] == ["dump.embedding_proved"]
    assert check_last_as_aux(name, last_matches(inv.target, iter(samples), list(samples[0].states))) == []


def test_few_states_say_which_ids_are_claims(five) -> None:
    (found,) = checked(five)
    assert found.title.startswith("Cannot tell B(3), B(16), B(28) of planted")
    assert "B(30)" not in found.title
    assert check_placement("planted", place(iter(five)), 30, ids_proved=True) == []


@pytest.mark.parametrize(("first", "second"), [(3, 16), (16, 28), (3, 28), (28, 30)])
def test_swapped_states_are_named(five, first: int, second: int) -> None:
    true = same(STORED, **{f"b{first}": second, f"b{second}": first})
    (found,) = checked(restated(five, true))
    assert (found.code, found.severity) == ("dump.states_swapped", Severity.FAULT)
    assert f"B({first}) and B({second}) are swapped" in found.title
    assert found.evidence["gain"] > GAIN


@pytest.mark.parametrize(("first", "second"), [(7, 8), (14, 15), (10, 20), (29, 30)])
def test_swapped_states_among_all_boundaries_are_named(every, first: int, second: int) -> None:
    true = same(range(31), **{f"b{first}": second, f"b{second}": first})
    (found,) = checked(restated(every, true))
    assert found.code == "dump.states_swapped"
    assert f"B({first}) and B({second}) are swapped" in found.title


def test_a_state_that_does_not_fit_is_named_with_the_id_that_would(every) -> None:
    """Three ids turned in a ring: each state's true id is given."""
    (found,) = checked(restated(every, same(range(31), b5=12, b12=22, b22=5)))
    assert (found.code, found.severity) == ("dump.state_misplaced", Severity.FAULT)
    for stated, true in ((5, 12), (12, 22), (22, 5)):
        assert f"B({stated}) is B({true})" in found.title


def test_a_state_that_fits_elsewhere_is_put_between_its_neighbours(every) -> None:
    """B(25) stated as B(6) in a dump of few states."""
    true = {0: 0, 3: 3, 6: 25, 10: 10, 16: 16, 22: 22, 28: 28, 30: 30}
    (found,) = checked(restated(every, true))
    assert found.code == "dump.state_misplaced"
    assert "B(6) lies between B(22) and B(28)" in found.title


def test_reversed_list_is_named(five) -> None:
    (found,) = checked(restated(five, {0: 0, 3: 30, 16: 28, 28: 16, 30: 3}))
    assert (found.code, found.severity) == ("dump.order_reversed", Severity.FAULT)


@pytest.mark.parametrize(
    ("change", "names", "word"),
    [
        ({"b16": 3}, "as B(3) and as B(16)", "one id is wrong"),
        ({"b28": 30}, "as B(28) and as B(30)", "one id is wrong"),
        ({"b28": 3}, "as B(3) and as B(28)", "B(28) that does not fit"),  # an auxiliary state copied over a deep one
        ({"b30": 16}, "as B(16) and as B(30)", "B(30) that does not fit"),  # an auxiliary state used as the last
        ({"b3": 30}, "as B(30) and as B(3)", "B(3) that does not fit"),  # the last state used as an auxiliary one
    ],
)
def test_a_duplicate_is_named(five, change: dict, names: str, word: str) -> None:
    (found,) = checked(restated(five, same(STORED, **change)))
    assert (found.code, found.severity) == ("dump.duplicate_state", Severity.FAULT)
    assert names in found.title
    assert word in found.meaning


def test_a_duplicate_with_a_scale_is_named(five) -> None:
    scaled = [replace(s, states=dict(s.states) | {28: s.states[30] * 3}) for s in five]
    (found,) = checked(scaled)
    assert found.code == "dump.duplicate_state"
    assert "factor of 0.333" in found.title


@pytest.mark.parametrize("boundary", STORED)
def test_rows_of_other_tokens_are_named(five, boundary: int) -> None:
    """The state of each sample's neighbour, as a batch written in another order has it."""
    wrong = [
        replace(s, states={b: (other if b == boundary else s).states[b][: len(s.states[b])] for b in s.states})
        for s, other in zip(five, [*five[1:], five[0]], strict=True)
    ]
    # Common rows stay common, so cut every state to the shortest.
    wrong = [replace(s, states={b: h[: min(map(len, s.states.values()))] for b, h in s.states.items()}) for s in wrong]
    found = checked(wrong)
    assert [(f.code, f.evidence["boundary"]) for f in found] == [("dump.unrelated_state", boundary)]


def test_every_dump_proves_the_ids_of_the_others(inv: Investigation, every) -> None:
    for name in ("five", "listed", "sampled"):
        found = check_identity(name, "every", identify(samples_of(inv, name)[0], every[0]))
        assert (found.code, found.severity) == ("dump.boundaries_proved", Severity.OK)
        assert found.evidence["nearest"] == found.evidence["boundaries"]


def test_ids_off_by_one_are_named_by_a_dump_of_every_boundary(every) -> None:
    """[2, 15, 27] captured where [3, 16, 28] is stated: the order is right, only the reference tells."""
    off = restated(every[1:], {0: 0, 3: 2, 16: 15, 28: 27, 30: 30})
    assert [f.code for f in checked(off)] == ["dump.ids_unproved"]
    found = check_identity("off", "every", identify(off[0], every[0]))
    assert (found.code, found.severity) == ("dump.other_boundary", Severity.FAULT)
    assert "B(3) is B(2), B(16) is B(15), B(28) is B(27)" in found.title
    assert "[0, 2, 15, 27, 30]" in found.remedy


def test_no_common_beginning_says_nothing(every) -> None:
    other = replace(every[1], token_ids=every[1].token_ids + 1)
    assert identify(other, every[0]) == []
    assert check_identity("other", "every", []) is None


def test_states_of_another_run_are_not_named(every) -> None:
    """A state that equals none of the reference's is no proof of any id."""
    source = toys.generator(1)
    noisy = {
        b: h.float() + h.float().std() * torch.randn(h.shape, generator=source) for b, h in every[1].states.items()
    }
    found = check_identity("noisy", "every", identify(replace(every[1], states=noisy), every[0]))
    assert found.code == "dump.identity_unclear"


@pytest.mark.parametrize("normed", [False, True])
def test_last_state_in_an_auxiliary_slot_is_named_without_the_last_state(inv, five, normed: bool) -> None:
    """A dump of [0, 3, 16, 28] that really holds B(30), or its norm, as the last: only the head tells."""
    wrong = [
        replace(s, states={0: s.states[0], 3: s.states[3], 28: inv.target.final_norm(h) if normed else h})
        for s in five
        for h in [s.states[30].float()]
    ]
    (found,) = check_last_as_aux("wrong", last_matches(inv.target, iter(wrong), [0, 3, 28]))
    assert (found.code, found.severity) == ("dump.last_state_as_aux", Severity.FAULT)
    assert found.evidence["boundary"] == 28
    assert found.evidence["normed"] is normed


def test_the_last_but_one_state_is_not_taken_for_the_last(inv: Investigation, every) -> None:
    assert check_last_as_aux("every", last_matches(inv.target, iter(every), [28, 29])) == []


def test_a_scaled_embedding_is_proved_by_its_ratio(inv: Investigation, five) -> None:
    """Gemma's embedding output is √H times the row."""
    scaled = [replace(s, states={0: (s.states[0].float() * 576**0.5).bfloat16()}) for s in five]
    (found,) = check_embedding("scaled", embedding_matches(inv.target, iter(scaled), [0]))
    assert (found.code, found.severity) == ("dump.embedding_scaled", Severity.NOTE)
    assert "24 times" in found.title
    assert "square root of 576" in found.title
    assert found.evidence["scale"] == pytest.approx(24, rel=1e-3)


def test_a_quantised_embedding_is_near_and_no_fault(inv: Investigation, five) -> None:
    """Rows in 4 bits, groups of 32: the tokens' own, and the order of the deep states stands as it was."""

    def in_four_bits(state: torch.Tensor) -> torch.Tensor:
        groups = state.float().unflatten(-1, (-1, 32))
        step = groups.abs().amax(-1, keepdim=True) / 7
        return ((groups / step).round() * step).flatten(-2)

    rough = [replace(s, states={**s.states, 0: in_four_bits(s.states[0])}) for s in five]
    matches = embedding_matches(inv.target, iter(rough), STORED)
    (found,) = check_embedding("rough", matches)
    assert (found.code, found.severity) == ("dump.embedding_near", Severity.NOTE)
    assert embedding_boundary(matches) == 0


def test_an_embedding_with_a_value_that_is_not_finite(inv: Investigation, five) -> None:
    state = five[0].states[0].clone()
    state[0, 0] = torch.nan
    (found,) = check_embedding("nan", embedding_matches(inv.target, [replace(five[0], states={0: state})], [0]))
    assert found.code == "dump.embedding_unknown"


def test_embedding_match_does_not_depend_on_chunks(inv: Investigation, five, monkeypatch) -> None:
    whole = embedding_matches(inv.target, iter(five), STORED)
    monkeypatch.setattr("eagle3lib.anchors.ROW_CHUNK", 17)
    for one, other in zip(whole, embedding_matches(inv.target, iter(five), STORED), strict=True):
        assert one.rows == other.rows == sum(len(s.states[0]) for s in five)
        assert one.scaled_difference == pytest.approx(other.scaled_difference, rel=1e-3)


def test_final_normed_stands_outside_the_order(inv: Investigation, five) -> None:
    states = [replace(s, states=dict(s.states) | {FINAL_NORMED: inv.target.final_norm(s.states[30])}) for s in five]
    placement = place(iter(states))
    assert placement.boundaries[-1] == FINAL_NORMED
    assert order(placement).stated == (3, 16, 28, 30)
    assert [f.code for f in check_placement("five", placement, 30)] == ["dump.ids_unproved"]


def residual_stream(n_layers: int, seed: int, rows: int = 300, hidden: int = 256) -> dict[int, torch.Tensor]:
    """Random steps of growing size, with two outlier channels."""
    source = toys.generator(seed)
    state = torch.randn(rows, hidden, generator=source)
    states = {0: state}
    for k in range(1, n_layers + 1):
        step = state @ torch.randn(hidden, hidden, generator=source) / hidden**0.5
        step = 0.5 * step * state.norm() / step.norm()
        state = state + step
        state = torch.cat([state[:, :2] + 3, state[:, 2:]], 1)
        states[k] = state
    return states


@pytest.mark.parametrize("seed", range(3))
def test_random_residual_streams_of_60_blocks(seed: int) -> None:
    """Any assignment of states to ids is undone, and the right one is left alone."""
    sample = toys.make_sample(length=300)
    states = residual_stream(60, seed)
    right = replace(sample, states=states)
    assert order(place([right])).gain == 0
    ids = np.arange(1, 61)
    true = np.random.default_rng(seed).permutation(ids)
    wrong = replace(sample, states={0: states[0]} | {int(b): states[int(t)] for b, t in zip(ids, true, strict=True)})
    found = order(place([wrong]))
    recovered = [int(true[b - 1]) for b in found.best]
    assert recovered in (list(range(1, 61)), list(range(60, 0, -1)))
    assert found.gain > GAIN


def test_misplaced_moves_as_few_as_possible() -> None:
    assert misplaced((1, 2, 3, 4)) == {}
    assert misplaced((2, 3, 1, 4)) == {1: (3, 4)}
    assert misplaced((4, 1, 2, 3)) == {4: (None, 1)}
    assert misplaced((2, 1)) == {1: (2, None)}
    assert misplaced((2, 1), doubtful={2}) == {2: (None, 1)}


@pytest.mark.parametrize("boundaries", [(0, 1, 2, 3, 4, 5), (0, 2, 3), (3,), (0,), (FINAL_NORMED,), (0, FINAL_NORMED)])
@pytest.mark.parametrize("length", [1, 2, 36, 400])
def test_random_states_do_not_crash(boundaries, length: int) -> None:
    placement = place(toys.make_sample(seed, length=length, boundaries=boundaries, turns=()) for seed in range(4))
    findings = check_placement("toy", placement, 5)
    assert all(isinstance(f, Finding) for f in findings)
    if length == 400 and len(boundaries) == 6:
        assert {f.code for f in findings} == {"dump.unrelated_state"}
    if length == 36 and len(boundaries) == 6:
        assert {f.code for f in findings} == {"dump.order_unclear"}


def test_rows_unfit_for_an_angle() -> None:
    sample = toys.make_sample()
    zero = replace(sample, states={b: torch.zeros_like(h) for b, h in sample.states.items()})
    assert place([zero]) is None
    assert [f.code for f in check_placement("zero", None)] == ["dump.placement_unknown"]
    nan = dict(sample.states) | {2: sample.states[2].clone()}
    nan[2][5] = torch.nan
    assert place([replace(sample, states=nan)]).rows == place([sample]).rows - 1


def test_reading_stops_at_enough_rows() -> None:
    """A dump of any number of samples costs the first ones."""
    read = []

    def stream():
        for i in range(1000):
            read.append(i)
            yield toys.make_sample(i, length=200, turns=())

    assert place(stream()).rows >= FEW_ROWS
    assert len(read) < 10


def test_residuals_against_least_squares_by_hand(five, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two-fold ridge residual against numpy's own solution of the padded problem."""
    from eagle3lib import placement as room

    found: Placement = place(iter(five))
    rows = [room.spread_rows(s, room.ROWS_PER_SAMPLE) for s in five]
    directions = room._directions(576).numpy()
    x, y = (
        torch.cat(
            [torch.nn.functional.normalize(s.states[b][r].float(), dim=-1) for s, r in zip(five, rows, strict=True)]
        ).numpy()
        @ directions
        for b in (3, 16)
    )
    fold = (np.arange(len(x)) * 4 // len(x)) % 2 == 0
    shares = []
    for fit, judge in ((fold, ~fold), (~fold, fold)):
        (xf, xj), (yf, yj) = (
            [(v[part] - v[fit].mean(0)) / v[fit].std(0, ddof=1) for part in (fit, judge)] for v in (x, y)
        )
        ridge = np.sqrt(room.RIDGE * len(xf)) * np.eye(32)
        maps = np.linalg.lstsq(np.vstack([xf, ridge]), np.vstack([yf, np.zeros((32, 32))]), rcond=None)[0]
        left = ((yj - xj @ maps) ** 2).sum() / (yj**2).sum()
        shares.append(left * (len(xf) - 33) / len(xf))
    assert found.residuals[1, 2] == pytest.approx(np.mean(shares), rel=1e-3)


def test_the_map_shows_every_angle(five) -> None:
    from eagle3lib import plots

    placement = place(iter(five))
    figure = plots.placement_map(placement, "The states lie in order")
    axes = figure.axes[0]
    assert figure.get_suptitle() == "The states lie in order"
    np.testing.assert_array_equal(axes.images[0].get_array(), placement.angles)
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"B({b})" for b in STORED]
    assert len(axes.texts) == 25
