"""The embedded engine under test, on a small target: what is served is what `generate` gives."""

from types import SimpleNamespace

import pytest
import torch
from tiny_drafts import tiny_draft
from tiny_targets import prompts, tiny_target

from dflash_backends.transformers.bench.dflash_loop import DFlashLoopSystem, counters, dflash_loop
from dflash_backends.transformers.bench.prompt_lookup import PromptLookupSystem, kept, prompt_lookup
from dflash_core.bench.requests import Ask
from dflash_core.bench.systems.base import Job
from dflash_core.bench.systems.embedded import drafted, drafting, plain
from dflash_core.bench.workbench import Workbench, typed
from dflash_core.errors import SettingsError
from dflash_core.generation import generate

TOKENS = 12


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Spelled:
    """A target whose prompts are token ids, written out: it needs no tokenizer."""

    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        return getattr(self._target, name)

    def encode(self, text):
        return [int(word) for word in text.split()]

    detokenize = None


TARGET = Spelled(tiny_target("llama"))
DRAFT = tiny_draft(TARGET)
PROMPTS = prompts(5, 9, 3, 7)


def workbench(log=None, **flags):
    def load_target(path, *arguments, **options):
        if log is not None:
            log.append(("target", path, options["fast"]))
        return TARGET

    def load_draft(path, target, drafter, **options):
        if log is not None:
            log.append(("draft", path, options))
        return tiny_draft(target, options=options)

    given = {"target": "t", "draft": "d", "schedule": "fixed", **flags}
    return Workbench(given, loaders=(load_target, load_draft))


def jobs(arrivals=None, tokens=TOKENS):
    asks = [Ask(f"a/{i}", "a", prompt=" ".join(map(str, prompt))) for i, prompt in enumerate(PROMPTS)]
    times = arrivals or [None] * len(asks)
    return [Job(ask, 0, i, tokens, when) for i, (ask, when) in enumerate(zip(asks, times, strict=True))]


def expected(draft, **options):
    return [
        generate(TARGET, draft, p, max_new_tokens=TOKENS, seed=i, **options) for i, p in enumerate(PROMPTS)
    ]


def by_ask(answers):
    return sorted(answers, key=lambda answer: answer.ask)


@pytest.mark.parametrize("at_once", [1, 3, None])
def test_served_tokens_are_those_of_generate_and_of_plain_decoding(at_once):
    arrivals = [0.0, 0.0, 0.001, 0.05] if at_once is None else None
    answers = {}
    for build in (plain, drafted):
        system = build(workbench(), {})
        system.open(at_once)
        answers[build] = by_ask(system.serve(jobs(arrivals)))
    want = [tuple(result.tokens[0]) for result in expected(None)]
    assert [a.tokens for a in answers[plain]] == [a.tokens for a in answers[drafted]] == want
    for answer in (*answers[plain], *answers[drafted]):
        assert sum(count for _, count in answer.deliveries) == answer.new_tokens == len(answer.tokens)
        times = [when for when, _ in answer.deliveries]
        assert times == sorted(times)
        assert times[0] > 0


def test_a_first_token_is_stamped_before_the_cycle_behind_it():
    for build in (plain, drafted):
        system = build(workbench(), {})
        for answer in system.serve(jobs()):
            assert answer.deliveries[0][1] == 1
            assert answer.decode_tokens == answer.new_tokens - 1
            assert answer.deliveries[0][0] < answer.deliveries[1][0]


def test_counters_of_drafts_are_those_of_the_engine():
    system = drafted(workbench(), {"verify_length": "3"})
    found = by_ask(system.serve(jobs()))
    for answer, result in zip(found, expected(DRAFT, schedule="fixed", verify_length=3), strict=True):
        assert answer.drafting == drafting(result.stats.requests[0])
    assert by_ask(plain(workbench(), {}).serve(jobs()))[0].drafting is None


def test_a_closed_loop_never_runs_more_than_its_users_and_an_open_one_keeps_to_the_clock():
    system = plain(workbench(), {})
    system.open(2)
    spans = sorted((a.issued, a.issued + a.end) for a in system.serve(jobs()))
    assert spans[0][0] < 1e-2
    assert all(spans[i + 2][0] >= min(spans[i][1], spans[i + 1][1]) for i in range(2))
    system.open(None)
    assert [a.issued for a in by_ask(system.serve(jobs([0.0, 0.01, 0.02, 0.2])))] == [0.0, 0.01, 0.02, 0.2]


def test_a_request_that_does_not_fit_fails_alone():
    found = by_ask(plain(workbench(), {}).serve(jobs(tokens=TOKENS)[:3] + jobs(tokens=600)[3:]))
    assert [a.error is None for a in found] == [True, True, True, False]
    assert "positions" in found[3].error


def test_models_are_loaded_once_however_many_systems_use_them():
    log = []
    bench = workbench(log)
    plain(bench, {})
    drafted(bench, {"verify_length": "block"})
    drafted(bench, {"tree_budget": "4"})
    assert log == [("target", "t", "auto"), ("draft", "d", {})]
    plain(bench, {"fast": "off"})
    drafted(bench, {"draft": "other", "draft_window": "4"})
    assert log[2:] == [("target", "t", "off"), ("draft", "other", {"draft_window": 4})]


def test_options_of_a_system_are_settings_and_are_checked_as_such():
    bench = workbench()
    assert drafted(bench, {"verify_length": "4", "block_size": "6"}).about["settings"]["verify_length"] == 4
    with pytest.raises(SettingsError, match="verify_length"):
        drafted(bench, {"verify_lenght": "4"})
    with pytest.raises(SettingsError, match="must be"):
        drafted(bench, {"block_size": "many"})
    with pytest.raises(SettingsError, match="target is not set"):
        plain(Workbench({}), {})
    assert typed({"a": "3", "b": "0.5", "c": "true", "d": "block"}) == {
        "a": 3,
        "b": 0.5,
        "c": True,
        "d": "block",
    }


@pytest.mark.parametrize(
    ("build", "option"),
    [
        (plain, "tree_budget=3"),
        (plain, "draft=other"),
        (drafted, "max_new_tokens=8"),
        (drafted, "seed=1"),
        (drafted, "block_diffusion=false"),
        (prompt_lookup, "verify_length=2"),
        (dflash_loop, "tree_budget=5"),
        (dflash_loop, "draft_vocab=64"),
        (dflash_loop, "fast=off"),
    ],
)
def test_an_option_that_a_system_does_not_follow_is_refused_by_name(build, option):
    name, _, value = option.partition("=")
    with pytest.raises(SettingsError, match=rf"--system .*: {name} does nothing there; its options are .*"):
        build(workbench(), {name: value})


def test_a_system_says_the_settings_that_it_follows_and_no_others():
    given = workbench(tree_budget=3, temperature=0.5).settings
    loop = object.__new__(DFlashLoopSystem)
    loop._settings = given
    told = {
        "plain": plain(workbench(tree_budget=3, temperature=0.5), {}).about,
        "lookup": PromptLookupSystem(SimpleNamespace(), given, 4).about,
        "loop": loop.about,
    }
    for about in told.values():
        assert about["settings"]["temperature"] == 0.5
        assert not {"tree_budget", "verifier", "schedule", "draft_vocab", "seed"} & set(about["settings"])
    assert told["loop"]["settings"]["draft"] == "d"
    assert drafted(workbench(tree_budget=3), {}).about["settings"]["tree_budget"] == 3


def test_prompt_lookup_says_the_same_as_plain_decoding():
    target = tiny_target("llama")
    target.encode = TARGET.encode
    system = PromptLookupSystem(target, workbench().settings, 4)
    found = system.serve(jobs())
    assert [a.tokens for a in found] == [tuple(result.tokens[0]) for result in expected(None)]
    assert all(sum(count for _, count in a.deliveries) == a.new_tokens for a in found)
    assert all(a.drafting.committed == a.decode_tokens for a in found)


def test_what_a_last_cycle_gave_beyond_the_end_does_not_count():
    assert kept([(0.1, 1), (0.2, 5), (0.3, 4)], 7) == ((0.1, 1), (0.2, 5), (0.3, 1))
    assert kept([(0.1, 3)], 0) == ()


def test_the_loop_of_the_dflash_package_is_counted_as_it_verifies():
    stats = counters([4, 1, 2], max_new_tokens=8, block=4)
    # Blocks of 3, 3 and min(4, 9 - 6) - 1 = 2 drafts: 3, 0 and 1 of them were accepted.
    assert (stats.verified, stats.accepted) == (8, 4)
    assert stats.slot_verified == [3, 2, 1]
    assert stats.slot_accepted == [2, 1, 1]


def test_greedy_is_asked_of_transformers_without_sampling_arguments():
    system = PromptLookupSystem(SimpleNamespace(), workbench().settings, 4)
    assert system._sampling(0)["do_sample"] is False
    warm = PromptLookupSystem(SimpleNamespace(), workbench(temperature=0.7).settings, 4)
    assert warm._sampling(0)["temperature"] == 0.7
