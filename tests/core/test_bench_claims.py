"""Claims: read as they are meant, refused with a sentence, and checked against the right rows."""

import pytest
from bench_samples import answer, turn

from dflash_core.bench.claims import check_claims, check_names, parse_claim
from dflash_core.bench.summary import Measured, summarise
from dflash_core.errors import SettingsError


def rows():
    """`fast` is twice as fast on set a, and half as fast on set b; `slow` as fast as plain."""
    results, groups = [], {}
    for index in range(8):
        group, pace = ("a", 0.005) if index % 2 else ("b", 0.02)
        ask = f"{group}/{index}"
        groups[ask] = group
        # On some requests it does better than on others, and half of the draws see fewer of those.
        uneven = pace * (1.01 if index > 3 else 0.99)
        for system, own in (("plain", 0.01), ("fast", uneven), ("my slow", 0.01)):
            results.append(turn(system, index, [answer(ask, pace=own)]))
    return summarise(Measured(results, groups, "plain"))


ROWS = rows()


def holds(text):
    return [check.holds for check in check_claims([parse_claim(text)], ROWS, "plain")]


def test_a_claim_is_about_all_systems_but_the_baseline_unless_it_names_one():
    assert holds("speedup >= 0.99") == [True, True]
    assert holds("speedup of fast >= 1.2") == [True]
    assert holds("speedup of 'my slow' >= 1.2") == [False]
    assert holds("ttft <= 0.2") == [True, True, True]


def test_a_claim_is_about_all_sets_together_unless_it_names_one():
    assert holds("speedup of fast on a >= 1.9") == [True]
    assert holds("speedup of fast on b >= 1.9") == [False]
    assert holds("speedup of fast on b <= 0.51") == [True]


def test_a_quantile_is_of_the_bootstrap_for_ratios_and_of_requests_for_latencies():
    claim = parse_claim("speedup of fast >= 1.2 at p05")
    [check] = check_claims([claim], ROWS, "plain")
    row = next(r for r in ROWS if r.system == "fast" and r.group == "all")
    assert check.value == row.speedup.at(0.05) < row.speedup.value
    [check] = check_claims([parse_claim("tpot of fast <= 20ms at p95")], ROWS, "plain")
    assert check.value == row.latencies["tpot"]["p95"]


def test_units_and_percent_are_understood():
    assert parse_claim("ttft <= 250ms at p99").bound == 0.25
    assert parse_claim("identical==100%").bound == 1.0
    assert parse_claim("speedup>=1.5x").bound == 1.5
    assert parse_claim("peak_memory <= 2 GB").bound == 2**31
    assert parse_claim("speedup of fast on a with 4 at once >= 2 at p05").level == "4 at once"
    assert parse_claim("goodput with 0.5 a second > 1").level == "0.5 a second"


def test_what_was_not_measured_does_not_hold_and_says_why():
    for text, reason in (
        ("goodput >= 0", "not reported"),
        ("acceptance_length of fast >= 1", "not reported"),
        ("failed == 0 at p05", "no interval"),
        ("speedup with 8 at once >= 0", "nothing measured"),
    ):
        checks = check_claims([parse_claim(text)], ROWS, "plain")
        assert checks
        assert not any(check.holds for check in checks)
        assert all(reason in check.reason for check in checks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speedup", "cannot be read"),
        ("speedup >=", "cannot be read"),
        ("speedup => 1.5", "cannot be read"),
        ("speedup >= 1.5 at 5", "cannot be read"),
        ("speedup >= fast", "cannot be read"),
        ("sped_up >= 1", "Did you mean 'speedup'"),
        ("ttft <= 1 at p80", "p50, p95, p99"),
        ("ttft <= 3 hours", "the unit 'hours'"),
        ("", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(text, words):
    with pytest.raises(SettingsError) as error:
        parse_claim(text)
    assert words in str(error.value)
    assert "--assert" in str(error.value)
    assert str(error.value).endswith(".")


def test_names_of_what_is_not_measured_are_refused_before_anything_runs():
    def check(text):
        check_names([parse_claim(text)], ["plain", "fast"], ["a"], ["1 at once"])

    check("speedup of fast on a with 1 at once >= 1")
    check("speedup on all >= 1")
    for text, name in (("speedup of quick >= 1", "quick"), ("speedup on c >= 1", "'c'")):
        with pytest.raises(SettingsError, match=name):
            check(text)
    with pytest.raises(SettingsError, match="4 at once"):
        check("speedup with 4 at once >= 1")
