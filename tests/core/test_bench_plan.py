"""What is asked, of whom and when; and that an interruption costs no more than a turn."""

import errno
import json
import os
from collections import Counter
from itertools import pairwise
from typing import ClassVar

import pytest
from bench_samples import answer, turn

from dflash_core.bench.level import Level
from dflash_core.bench.plan import Plan, order_of, turns
from dflash_core.bench.requests import Ask, gather, read_asks
from dflash_core.bench.run import carry_out
from dflash_core.bench.runfile import RunFile, results_of
from dflash_core.bench.systems.base import Job
from dflash_core.bench.systems.in_turn import serve_in_turn
from dflash_core.bench.systems.spec import parse_system, parse_systems
from dflash_core.errors import DFlashError, SettingsError

ASKS = tuple(Ask(f"a/{i}", "a", prompt=str(i)) for i in range(12))


def plan(**changes):
    fields = {"asks": ASKS, "labels": ("x", "y", "z"), "levels": (Level(1),), "max_new_tokens": 4}
    return Plan(**{**fields, **changes})


class Echo:
    """A system that answers at once and remembers what it was asked."""

    local = in_process = False
    about: ClassVar = {"kind": "echo"}

    def __init__(self, log, label, stop_after=None):
        self.log, self.label, self.stop_after = log, label, stop_after

    def open(self, at_once):
        self.log.append(("open", self.label, at_once))

    def serve(self, jobs):
        if self.stop_after is not None and len(self.log) >= self.stop_after:
            raise KeyboardInterrupt
        self.log.append((self.label, [job.ask.id for job in jobs]))
        return [answer(job.ask.id, repeat=job.repeat) for job in jobs]


def systems(log, **options):
    return {label: Echo(log, label, **options) for label in ("x", "y", "z")}


def test_every_system_gets_every_request_as_often_as_it_is_repeated():
    asked = Counter((t.system, job.ask.id) for t in turns(plan(repeats=2)) for job in t.jobs)
    assert set(asked.values()) == {2}
    assert len(asked) == 3 * 12
    assert len({t.key for t in turns(plan(repeats=2))}) == 3 * 24


def test_systems_take_turns_request_by_request_and_none_is_always_first_or_after_the_same():
    sequence = list(turns(plan()))
    assert [t.round for t in sequence] == [index // 3 for index in range(36)]
    orders = [order_of(("x", "y", "z"), number) for number in range(6)]
    assert Counter(order[0] for order in orders) == {"x": 2, "y": 2, "z": 2}
    before = Counter((a, b) for order in orders for a, b in pairwise(order))
    assert set(before.values()) == {2}


def test_rounds_of_a_crowd_are_longer_and_jobs_of_all_systems_the_same():
    sequence = list(turns(plan(levels=(Level(2), Level(rate=5.0)))))
    crowd = [t for t in sequence if t.level.concurrency == 2]
    assert [len(t.jobs) for t in crowd if t.system == "x"] == [8, 4]
    assert all(job.arrival is None for t in crowd for job in t.jobs)
    by_system = {t.system: t.jobs for t in sequence if t.level.rate}
    assert by_system["x"] == by_system["y"] == by_system["z"]


def test_arrivals_have_the_asked_rate_and_depend_on_the_seed_alone():
    level = Level(rate=4.0)
    times = level.arrivals(4000, "0/0")
    assert times == sorted(times) == level.arrivals(4000, "0/0") != level.arrivals(4000, "1/0")
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"rate": 0.0}, {"rate": float("inf")}])
def test_an_impossible_level_is_refused(wrong):
    with pytest.raises(SettingsError, match="must be"):
        Level(**wrong)


def test_requests_are_the_same_for_a_seed_and_the_sets_take_turns():
    first = gather(["gsm8k", "mtbench"], [], 5, seed=1)
    assert first == gather(["gsm8k", "mtbench"], [], 5, seed=1)
    assert [ask.group for ask in first] == ["gsm8k", "mtbench"] * 5
    other = gather(["gsm8k", "mtbench"], [], 5, seed=2)
    assert first != other
    assert {ask.id for ask in first} == {ask.id for ask in other}


def test_a_file_of_requests_is_read_in_all_its_forms(tmp_path):
    path = tmp_path / "mine.jsonl"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    lines = [{"messages": chat, "id": "greeting"}, {"prompt": "Hi"}, {"text": "Once upon"}]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    greeting, prompt, text = read_asks(path)
    assert (greeting.id, greeting.messages, greeting.group) == ("mine/greeting", tuple(chat), "mine")
    assert prompt.messages == ({"role": "user", "content": "Hi"},)
    assert (text.prompt, text.messages) == ("Once upon", ())
    assert len(gather([], [path], None, 0)) == 3


DEEP = '{"prompt": ' + "[" * 100_000
LONE = r'{"prompt": "bad \ud800 x"}'


@pytest.mark.parametrize(
    "line", ['{"prompt": 3}', "[1]", "{", '{"messages": []}', '{"text": ""}', "{}", DEEP, LONE]
)
def test_a_malformed_request_is_named_with_file_and_line(tmp_path, line):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(SettingsError, match=r"mine\.jsonl, line 2") as error:
        read_asks(path)
    assert ("surrogate" in str(error.value)) == (line == LONE)


def test_a_file_called_as_the_row_over_all_sets_is_refused(tmp_path):
    path = tmp_path / "all.jsonl"
    path.write_text('{"prompt": "Hi"}\n')
    with pytest.raises(SettingsError, match=r"all\.jsonl: 'all' is the name .* rename"):
        gather([], [path], None, 0)


def test_two_requests_of_one_id_are_refused(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}\n')
    with pytest.raises(SettingsError, match="'1' is there twice"):
        read_asks(path)


def test_a_system_is_a_kind_with_options():
    spec = parse_system("endpoint:url=http://localhost:30000/v1, model=m,label=ours")
    assert spec.kind == "endpoint"
    assert spec.options == {"url": "http://localhost:30000/v1", "model": "m"}
    assert spec.label == "ours"
    assert parse_system("dflash:verify-length=4").options == {"verify_length": "4"}
    assert parse_system("plain").label == "plain"
    for text in ("", ":a=1", "plain:", "plain:a", "plain:=1", "plain:a=", "plain:a=1,a=2"):
        with pytest.raises(SettingsError, match="--system"):
            parse_system(text)
    with pytest.raises(SettingsError, match="label=NAME"):
        parse_systems(["plain", "plain"])


def test_an_interrupted_run_goes_on_where_it_was_and_asks_nothing_twice(tmp_path):
    path, header = tmp_path / "run.jsonl", {"fingerprint": "f"}
    log = []
    with pytest.raises(KeyboardInterrupt):
        carry_out(plan(), systems(log, stop_after=12), RunFile(path, header, resume=False))
    kept = [result.key for result in RunFile(path, header, resume=True).done]
    assert kept == [t.key for t in turns(plan())][: len(kept)]
    assert kept
    with path.open("a") as file:
        file.write('{"level": "1 at once", "rou')  # killed while it wrote
    again = []
    keep = RunFile(path, header, resume=True)
    carry_out(plan(), systems(again), keep, warm_up=0)
    assert len([entry for entry in again if entry[0] != "open"]) == 36 - len(kept)
    everything = [t.key for t in turns(plan())]
    assert [r.key for r in results_of(RunFile(path, header, resume=True).done, everything)] == everything


def test_each_system_is_opened_and_warmed_once_a_level_and_its_warm_up_is_not_kept(tmp_path):
    log = []
    keep = RunFile(tmp_path / "run.jsonl", {"fingerprint": "f"}, resume=False)
    carry_out(plan(levels=(Level(1), Level(2))), systems(log), keep, warm_up=2)
    assert [e for e in log if e[0] == "open"] == [("open", s, n) for n in (1, 2) for s in ("x", "y", "z")]
    assert len(keep.done) == 3 * 12 + 3 * 2
    assert sum(1 for e in log if e[1] == ["a/0", "a/1"]) == 6


def test_a_system_that_answers_nothing_stops_the_run_before_it_is_measured(tmp_path):
    class Broken(Echo):
        def serve(self, jobs):
            return [turn_error(job) for job in jobs]

    def turn_error(job):
        return answer(job.ask.id).__class__(job.ask.id, 0, 0.0, error="it is broken")

    keep = RunFile(tmp_path / "run.jsonl", {"fingerprint": "f"}, resume=False)
    with pytest.raises(DFlashError, match=r"'x' answers nothing.*it is broken"):
        carry_out(plan(labels=("x",)), {"x": Broken([], "x")}, keep)
    assert keep.done == []


def test_a_run_file_is_not_mistaken_for_another_and_never_overwritten(tmp_path):
    path = tmp_path / "run.jsonl"
    with pytest.raises(DFlashError, match="leave --resume out"):
        RunFile(path, {"fingerprint": "f"}, resume=True)
    RunFile(path, {"fingerprint": "f"}, resume=False).add(turn("x", 0, [answer("a/0")]))
    with pytest.raises(DFlashError, match="--resume"):
        RunFile(path, {"fingerprint": "f"}, resume=False)
    with pytest.raises(DFlashError, match="another benchmark"):
        RunFile(path, {"fingerprint": "g"}, resume=True)
    path.write_text("hello\n")
    with pytest.raises(DFlashError, match="is not a run file"):
        RunFile(path, {"fingerprint": "f"}, resume=True)


def test_a_run_file_that_a_full_disk_left_empty_is_begun_anew(tmp_path, monkeypatch):
    path, header = tmp_path / "run.jsonl", {"fingerprint": "f"}

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DFlashError, match="No space left"):
            RunFile(path, header, resume=False)
    assert not path.exists()
    path.touch()  # left by an earlier version, or by a kill
    with pytest.raises(DFlashError, match="leave --resume out"):
        RunFile(path, header, resume=True)
    RunFile(path, header, resume=False).add(turn("x", 0, [answer("a/0")]))
    assert len(RunFile(path, header, resume=True).done) == 1


def test_the_fingerprint_knows_requests_levels_and_settings():
    prints = {
        plan().fingerprint([{"kind": "a"}]),
        plan().fingerprint([{"kind": "b"}]),
        plan(seed=1).fingerprint([{"kind": "a"}]),
        plan(levels=(Level(2),)).fingerprint([{"kind": "a"}]),
        plan(asks=ASKS[:3]).fingerprint([{"kind": "a"}]),
    }
    assert len(prints) == 5
    assert plan().fingerprint([{"kind": "a"}]) in prints


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


def serve(arrivals, at_once, seconds=1.0):
    clock = Clock()

    def respond(job):
        clock.now += seconds
        return answer(job.ask.id, first=seconds, count=1)

    jobs = [Job(ask, 0, 0, 4, arrival) for ask, arrival in zip(ASKS, arrivals, strict=False)]
    return [(a.issued, a.first) for a in serve_in_turn(jobs, at_once, respond, clock, clock.wait)]


def test_who_waits_for_others_waits_on_his_own_clock():
    assert serve([None] * 3, 1) == [(0, 1), (1, 1), (2, 1)]
    assert serve([None] * 4, 2) == [(0, 1), (0, 2), (1, 2), (2, 2)]
    assert serve([0.0, 0.5, 5.0], None) == [(0, 1), (0.5, 1.5), (5.0, 1)]
