"""A tiny benchmark of the real pair: every system that needs no server, side by side."""

import pytest

from dflash_core.bench.benchmark import Benchmark
from dflash_core.bench.figures import ALL
from dflash_core.bench.options import BenchOptions
from dflash_core.bench.report.page import page
from dflash_core.bench.workbench import Workbench
from dflash_core.demo import TARGET, draft_folder, draft_vocab_file
from dflash_core.loading import load_draft, load_target

pytestmark = pytest.mark.slow

SYSTEMS = (
    *("plain", "dflash:verify_length=block,label=block", "dflash:tree_budget=6,label=tree"),
    *("prompt-lookup:tokens=4,label=lookup", "dflash-0.1.0"),
)


def untimed(path, engine, dtype, **options):
    """Without what is measured and kept about a machine: nothing here depends on speed."""
    return load_target(path, engine, dtype, **{**options, "fast": "off"}, calibrate=False)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    flags = {
        "target": TARGET,
        "draft": str(draft_folder()),
        "draft_vocab": str(draft_vocab_file()),
        "max_new_tokens": 8,
    }
    options = BenchOptions.parse(
        flags=flags,
        systems=SYSTEMS,
        sets=["gsm8k"],
        prompts=2,
        concurrency=[1, 2],
        claims=["identical == 100%", "failed == 0"],
    )
    bench = Benchmark(options, workbench=Workbench(flags, loaders=(untimed, load_draft)))
    keep = bench.open_run(tmp_path_factory.mktemp("bench") / "run.jsonl", resume=False)
    bench.run(keep)
    assert len(keep.done) == bench.turns == 2 * 5 + 5
    return bench.outcome(keep)


def test_every_system_gives_the_text_of_plain_decoding(outcome):
    assert [check for check in outcome.checks if not check.holds] == []
    assert len(outcome.checks) == 2 * (4 + 5)


def test_every_system_has_its_figures(outcome):
    for row in outcome.rows:
        assert row.failed == 0
        assert row.tokens == 16
        assert row.speedup is not None
        assert row.speedup.value > 0
        assert row.latencies["ttft"]["p50"] > 0
        drafts = row.system != "plain"
        assert (row.acceptance_length is not None) == drafts
        if row.system in ("block", "tree", "dflash-0.1.0"):
            assert 0 <= row.hit_rate.value <= 1
            assert row.acceptance_length.value >= 1


def test_the_same_draft_is_accepted_alike_in_both_loops(outcome):
    """The package's loop and ours verify whole blocks of one draft, but for the tokens ours leaves out."""
    alone = {row.system: row for row in outcome.rows if row.group == ALL and row.level == "1 at once"}
    ours, theirs = alone["block"].acceptance_length.value, alone["dflash-0.1.0"].acceptance_length.value
    assert ours == pytest.approx(theirs, rel=0.4)


def test_the_report_has_every_system(outcome):
    text = page(outcome)
    assert all(label in text for label in outcome.systems)
    assert text.count("<svg") == 4
