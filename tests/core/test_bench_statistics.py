"""Figures of a benchmark, on answers whose times are known."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from bench_samples import answer, turn

from dflash_core.bench.answer import Answer, Drafting, drafting_from_histogram, drafting_of
from dflash_core.bench.figures import ALL, latencies_of, same_answer
from dflash_core.bench.report.charts import acceptance_by_slot
from dflash_core.bench.report.tables import drafts, reasons, resources, slots
from dflash_core.bench.statistics import draw_weights, mean_of, percentile, quotient, ratio_of_sums
from dflash_core.bench.summary import Measured, summarise
from dflash_core.bench.targets import parse_target, parse_targets
from dflash_core.errors import SettingsError
from dflash_core.stats import RequestStats

GROUPS = {f"{group}/{i}": group for group in ("a", "b") for i in range(20)}


def measured(results, **changes):
    fields = {"baseline": "plain", "groups": GROUPS}
    return Measured(results=results, **{**fields, **changes})


def rows_of(rows, system, group=ALL):
    return next(row for row in rows if (row.system, row.group) == (system, group))


def side_by_side(speed, count=20, noise=0.2, seed=0):
    """Turns of `plain` and of `fast`, which needs `1 / speed` of its time, with noise on both."""
    generator = np.random.default_rng(seed)
    results = []
    for place, ask in enumerate(list(GROUPS)[:count] + list(GROUPS)[20 : 20 + count]):
        pace = 0.01 * math.exp(generator.normal(0, 0.3))
        for system, factor in (("plain", 1.0), ("fast", speed)):
            own = pace / factor * math.exp(generator.normal(0, noise))
            results.append(turn(system, place, [answer(ask, pace=own)]))
    return results


def test_percentiles_are_interpolated_and_of_nothing_there_are_none():
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([], 0.5) is None


@pytest.mark.parametrize("count", [3, 5, 10, 40])
def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says(count):
    generator = np.random.default_rng(1)
    covered = 0
    for run in range(400):
        bottoms = generator.uniform(1, 2, count)
        tops = bottoms * 1.5 * np.exp(generator.normal(0, 0.3, count) - 0.045)
        found = ratio_of_sums(tops, bottoms, draw_weights(count, run, "set", 500))
        covered += found.low <= 1.5 <= found.high
    assert 0.9 <= covered / 400 <= 0.99


def test_the_same_seed_gives_the_same_interval_and_another_set_other_draws():
    first, again = (draw_weights(10, 3, "a", 50) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, draw_weights(10, 3, "b", 50))
    assert (first.sum(1) == 10).all()


def test_of_a_single_request_there_is_a_figure_and_no_interval():
    found = ratio_of_sums([3.0], [2.0], draw_weights(1, 0, "a"))
    assert (found.value, found.low, found.at(0.05)) == (1.5, None, None)
    json.dumps(found.to_dict(), allow_nan=False)
    assert quotient(found, found).low is None
    assert mean_of([found, found]).high is None
    assert mean_of([found, None]) is None


def test_nothing_is_divided_by_nothing():
    assert ratio_of_sums([1.0, 1.0], [0.0, 0.0], draw_weights(2, 0, "a")) is None
    assert quotient(None, None) is None


def test_times_are_read_off_the_deliveries():
    one = Answer("a/0", 0, 0.0, deliveries=((0.5, 2), (0.7, 3), (1.1, 1)), new_tokens=6)
    assert (one.first, one.end) == (0.5, 1.1)
    assert one.decode_tokens == 4
    assert one.seconds_a_token == pytest.approx(0.15)
    at_once = Answer("a/0", 0, 0.0, deliveries=((0.5, 6),), new_tokens=6)
    assert at_once.seconds_a_token is None
    found = latencies_of([one, at_once])
    assert found["ttft"]["p50"] == 0.5
    assert found["tpot"]["p99"] == pytest.approx(0.15)


def test_an_answer_survives_json():
    full = answer("a/0", lengths=[3, 1, 4], text="hi")
    for one in (full, Answer("a/1", 2, 0.5, error="no")):
        again = Answer.from_dict(json.loads(json.dumps(one.to_dict())))
        assert again == one


def test_speedup_is_found_within_its_interval_and_pairs_requests():
    fast = rows_of(summarise(measured(side_by_side(1.5))), "fast")
    assert fast.speedup.low <= 1.5 <= fast.speedup.high
    # Requests differ by a factor of two or so; paired, that does not blur the ratio.
    assert fast.speedup.high - fast.speedup.low < 0.35
    assert rows_of(summarise(measured(side_by_side(1.5))), "plain").speedup.value == 1.0


def test_two_measurements_of_one_thing_agree_within_their_intervals():
    pairs = [
        [
            rows_of(summarise(measured(side_by_side(1.4, seed=seed))), "fast").speedup
            for seed in (2 * i, 2 * i + 1)
        ]
        for i in range(10)
    ]
    agree = [max(a.low, b.low) <= min(a.high, b.high) for a, b in pairs]
    assert all(agree)


def test_over_all_sets_a_ratio_is_the_mean_of_the_sets():
    results = []
    for place, (ask, speed) in enumerate(
        [("a/0", 1.0), ("a/1", 1.0), ("a/2", 1.0), ("b/0", 3.0), ("b/1", 3.0)]
    ):
        results += [
            turn("plain", place, [answer(ask)]),
            turn("fast", place, [answer(ask, pace=0.01 / speed, first=0.2)]),
        ]
    rows = summarise(measured(results))
    assert rows_of(rows, "fast", "a").speedup.value == pytest.approx(1.0)
    assert rows_of(rows, "fast", "b").speedup.value == pytest.approx(3.0, rel=1e-3)
    assert rows_of(rows, "fast").speedup.value == pytest.approx(2.0, rel=1e-3)


def test_a_request_that_only_one_system_answered_is_in_no_ratio():
    results = [
        turn("plain", 0, [answer("a/0")]),
        turn("fast", 0, [answer("a/0", pace=0.005)]),
        turn("plain", 1, [Answer("a/1", 0, 0.0, error="broken")]),
        turn("fast", 1, [answer("a/1", pace=10.0)]),
    ]
    rows = summarise(measured(results))
    assert rows_of(rows, "fast").speedup.value == pytest.approx(2.0)
    assert (rows_of(rows, "plain").failed, rows_of(rows, "plain").requests) == (1, 2)
    assert rows_of(rows, "fast").compared == 1


@pytest.mark.parametrize("alone", [True, False], ids=["a request a turn", "all requests at once"])
@pytest.mark.parametrize("refuses", ["plain", "fast"])
def test_throughput_is_compared_over_turns_that_both_answered_in_full(alone, refuses):
    """A refusal costs a thousandth of a second: counted as a turn, it is either a gift or a burden."""
    asks, results = [f"a/{i}" for i in range(6)], []
    for place, part in enumerate([[ask] for ask in asks] if alone else [asks[:3], asks[3:]]):
        for system, factor in (("plain", 1.0), ("fast", 2.0)):
            answers = [answer(ask, pace=0.01 / factor) for ask in part]
            if place == 0 and system == refuses:
                answers[0] = Answer(part[0], 0, 0.0, error="too long")
            spent = 0.001 if place == 0 and system == refuses else len(part) / factor
            results.append(turn(system, place, answers, seconds=spent))
    for row in (rows_of(summarise(measured(results)), "fast", name) for name in ("a", ALL)):
        assert row.speedup_total.value == pytest.approx(2.0)
        assert row.speedup_total.high in (None, pytest.approx(2.0))
    of_one = [result for result in results if result.round == 0]
    assert rows_of(summarise(measured(of_one)), "fast").speedup_total is None


def test_of_one_request_that_both_answered_there_is_a_ratio_and_no_interval():
    results = [
        turn("plain", 0, [answer("a/0")]),
        turn("fast", 0, [answer("a/0", pace=0.005)]),
        turn("plain", 1, [Answer("a/1", 0, 0.0, error="broken")], seconds=0.001),
        turn("fast", 1, [answer("a/1")]),
    ]
    row = rows_of(summarise(measured(results)), "fast")
    for ratio in (row.speedup, row.speedup_e2e, row.speedup_total):
        assert ratio.value > 0
        assert ratio.low is None


def test_reasons_of_failures_are_counted_and_only_the_frequent_ones_are_shown():
    names = [*"cabbc", *"defgh"]
    answers = [Answer(f"a/{i}", 0, 0.0, error=name) for i, name in enumerate(names)]
    row = rows_of(summarise(measured([turn("plain", 0, [*answers, answer("a/15")])])), "plain")
    assert list(row.errors.items())[:3] == [("c", 2), ("b", 2), ("a", 1)]
    assert sum(row.errors.values()) == row.failed == 10
    assert reasons(row)[-2:] == [("e", 1), ("other reasons", 3)]


def test_repetitions_belong_to_their_request():
    def results(repeats):
        found = side_by_side(1.5)
        return [
            turn(
                r.system,
                r.round * 3 + n,
                [answer(r.answers[0].ask, pace=r.answers[0].seconds_a_token, repeat=n)],
            )
            for r in found
            for n in range(repeats)
        ]

    once, thrice = (rows_of(summarise(measured(results(n))), "fast").speedup for n in (1, 3))
    assert thrice.value == pytest.approx(once.value)
    assert thrice.low == pytest.approx(once.low)


def test_identity_is_by_token_where_both_have_tokens_and_by_text_otherwise():
    one, other = answer("a/0", tokens=(1, 2, 3), text="abc"), answer("a/0", tokens=(1, 2, 4), text="abc")
    assert same_answer(one, one) == (True, None)
    assert same_answer(one, other) == (False, 2)
    assert same_answer(one, answer("a/0", tokens=None, text="abc")) == (True, None)
    assert same_answer(one, answer("a/0", tokens=None, text="ab")) == (False, 2)
    assert same_answer(one, answer("a/0", tokens=None)) is None


def test_goodput_counts_what_met_every_target_and_failures_as_bad():
    answers = [answer("a/0", first=0.1), answer("a/1", first=0.9), Answer("a/2", 0, 0.0, error="x")]
    row = rows_of(
        summarise(measured([turn("plain", 0, answers, seconds=4.0)], targets=parse_targets(["ttft <= 0.5"]))),
        "plain",
    )
    assert row.met.value == pytest.approx(1 / 3)
    assert 0 <= row.met.low < row.met.value < row.met.high <= 1
    assert row.goodput == pytest.approx(0.25)


def test_a_target_takes_milliseconds_and_refuses_what_is_none():
    assert parse_target("tpot <= 50ms").seconds == 0.05
    assert parse_target("e2e<2s").seconds == 2.0
    for text in ("ttft >= 1", "latency <= 1", "ttft", "ttft <= ."):
        with pytest.raises(SettingsError, match=r"ttft <= 0\.5"):
            parse_target(text)


def test_cost_and_energy_are_of_the_time_that_was_spent():
    results = [turn("plain", i, [answer(f"a/{i}", count=10)], seconds=36.0, joules=5.0) for i in range(2)]
    row = rows_of(summarise(measured(results, price=1.0)), "plain")
    assert row.cost_request == pytest.approx(0.01)
    assert row.cost_million == pytest.approx(1000.0)
    assert row.joules == pytest.approx(5.0)
    silent = rows_of(summarise(measured([*results, turn("plain", 2, [answer("a/2")])])), "plain")
    assert silent.joules is None
    assert silent.cost_request is None


def test_a_set_that_shared_turns_has_no_throughput_of_its_own():
    row = summarise(measured([turn("plain", 0, [answer("a/0"), answer("b/0")])]))
    assert [one.total_rate is None for one in row] == [True, True, False]


def test_drafts_are_counted_as_our_engine_counts_them():
    stats = RequestStats(prompt_tokens=1)
    accepted = [0, 3, 2, 0, 1, 3]
    for count in accepted:
        stats.record(drafted=3, verified=3, depth=3, accepted=count, produced=count + 1)
    counts = [accepted.count(n) for n in range(4)]
    found = drafting_from_histogram(counts, 18, 9)
    assert found.slot_verified == tuple(stats.slot_verified)
    assert found.slot_accepted == tuple(stats.slot_accepted)
    assert found.lengths == drafting_of(stats.acceptance_lengths).lengths
    assert (found.verified, found.accepted) == (stats.verified, stats.accepted)


def test_counters_add_up_and_what_one_does_not_know_stays_unknown():
    both = Drafting((0, 2), 3, 1, (2,), (1,)) + Drafting((0, 1, 1), None, None, (1, 1), (1, 0))
    assert both == Drafting((0, 3, 1), 3, 1, (3, 1), (2, 0))
    assert both.cycles == 4
    assert both.committed == 5


def test_acceptance_length_is_over_cycles_not_over_requests():
    results = [
        turn("fast", 0, [answer("a/0", lengths=[4])]),
        turn("fast", 1, [answer("a/1", lengths=[1, 1, 1])]),
    ]
    assert rows_of(summarise(measured(results)), "fast").acceptance_length.value == pytest.approx(7 / 4)


def drafted(ask, lengths, verified, accepted):
    """An answer of blocks of 4: three drafts are verified a cycle, as deep as they go."""
    counters = replace(
        drafting_of(lengths),
        verified=verified,
        accepted=accepted,
        slot_verified=(len(lengths), 1, 1),
        slot_accepted=(1, 1, 1),
    )
    return replace(answer(ask), drafting=counters)


def test_intervals_of_a_few_requests_stay_where_such_figures_can_lie():
    answers = [drafted("a/0", [4, 4, 4], 9, 9), drafted("a/1", [1] * 9, 27, 0)]
    answers.append(replace(answer("a/2"), drafting=Drafting((0, 1), 0, 0)))  # it was decoded plainly
    [row, _] = summarise(measured([turn("fast", i, [one]) for i, one in enumerate(answers)]))
    assert (row.acceptance_length.low, row.acceptance_length.high) == (1.0, 4.0)
    assert (row.hit_rate.low, row.hit_rate.high) == (0.0, 1.0)
    assert row.acceptance_length.at(0.05) >= 1
    untold = [answer("a/0", lengths=[4, 4, 4]), answer("a/1", lengths=[1] * 9)]
    [row, _] = summarise(measured([turn("fast", i, [one]) for i, one in enumerate(untold)]))
    assert row.acceptance_length.low == 1.0
    assert row.acceptance_length.high > 4.0  # nothing says how long its blocks are


def test_rates_of_drafts_and_good_requests_are_shown_with_their_intervals():
    answers = [drafted(f"{group}/{i}", [2, 1, 1], 9, i) for group in ("a", "b") for i in range(1, 4)]
    answers[0] = replace(answers[0], drafting=replace(answers[0].drafting, slot_accepted=(0, 0, 0)))
    targets = parse_targets(["ttft <= 0.05"])
    answers[1] = replace(answers[1], deliveries=((0.01, 8),))
    results = [turn("fast", i, [one]) for i, one in enumerate(answers)]
    rows = summarise(measured(results, targets=targets))
    [whole] = [row for row in rows if row.group == ALL]
    first = whole.slot_acceptance[0]
    assert (first.value, whole.met.value) == (pytest.approx(5 / 18), pytest.approx(1 / 6))
    assert 0 <= first.low < first.value < first.high <= 1
    options = {"latency_targets": ["ttft <= 0.05"]}
    shown = {
        column: cell
        for table in (drafts([whole]), slots([whole]), resources([whole], SimpleNamespace(options=options)))
        for column, cell in zip(table.columns, table.rows[0], strict=True)
    }
    for column, figure in (("hit rate", whole.hit_rate), ("slot 1", first)):
        assert shown[column] == f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"
    assert shown["good share"] == f"17% ({whole.met.low:.0%} to {whole.met.high:.0%})"
    chart = acceptance_by_slot(rows, ["fast"])
    assert f"fast, slot 1: 27.8% ({first.low:.1%} to {first.high:.1%})" in chart
    assert chart.count("whisker") == 1  # hardly a cycle came to the others


def test_figures_are_json():
    rows = summarise(measured(side_by_side(1.5), targets=parse_targets(["e2e <= 1"]), price=2.0))
    assert len(json.loads(json.dumps([row.to_dict() for row in rows], allow_nan=False))) == 6
