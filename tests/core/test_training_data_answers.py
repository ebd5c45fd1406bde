"""Answers are the target's own, each prompt once, whatever stopped the run in between."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny_folder import tiny_folder, write_prompts

import dflash_core
from dflash_core.bench import prompts as sets
from dflash_core.cli import main
from dflash_core.cli.data import template_variables
from dflash_core.errors import RequestError
from dflash_core.training.data import AnswerStore, answer_prompts, read_prompts
from dflash_core.training.data.answering import TOO_LONG, TOO_SHORT, AnswerOptions, Collector
from dflash_core.training.data.store import read_header, read_sequences, records, shards

OPTIONS = AnswerOptions(max_prompt_tokens=40, max_new_tokens=24, temperature=1.0, max_batch=8, shard=10)
HEADER = {"target": "tiny"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def target(folder):
    return dflash_core.load_target(folder, fast="off", calibrate=False)


@pytest.fixture
def prompts(tmp_path):
    return read_prompts([write_prompts(tmp_path / "prompts.jsonl", [f"number {i}" for i in range(60)])])


def answers_of(folder):
    """Prompt id -> its tokens; every id must be there once."""
    found = {}
    data = read_sequences(folder)
    ids = [record["id"] for shard in shards(folder) for record in records(shard)]
    assert len(ids) == len(data)
    for index, id in enumerate(ids):
        assert id not in found
        row = slice(int(data.offsets[index]), int(data.offsets[index + 1]))
        found[id] = (data.tokens[row].tolist(), data.loss[row].tolist())
    return found


def test_the_answers_are_what_the_target_says_and_the_mask_covers_just_them(tmp_path, target, prompts):
    store = AnswerStore(tmp_path / "data", HEADER)
    greedy = AnswerOptions(max_prompt_tokens=40, max_new_tokens=24, max_batch=8)
    done = answer_prompts(target, prompts[:12], store, greedy)
    kept = answers_of(store.folder)
    assert done.answers == len(kept) > 0
    for prompt in prompts[:12]:
        ids = target.encode_chat(prompt.chat())
        own = dflash_core.generate(target, None, [ids], max_new_tokens=24).tokens[0]
        if len(own) >= 4:
            tokens, loss = kept[prompt.id]
            assert tokens == [*ids, *own]
            assert loss == [False] * len(ids) + [True] * len(own)


def test_an_interrupted_run_is_gone_on_with_to_the_same_answers(tmp_path, target, prompts):
    whole = AnswerStore(tmp_path / "whole", HEADER)
    answer_prompts(target, prompts, whole, OPTIONS)
    parts = AnswerStore(tmp_path / "parts", HEADER)
    steps = iter(range(10**6))
    first = answer_prompts(target, prompts, parts, OPTIONS, stop=lambda: next(steps) == 40)
    assert 0 < first.answers < 60
    assert len(answers_of(parts.folder)) == first.answers

    def interrupt(progress):
        if progress.answers > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_prompts(target, prompts, parts, OPTIONS, interrupt)
    assert len(answers_of(parts.folder)) > first.answers
    answer_prompts(target, prompts, AnswerStore(tmp_path / "parts", HEADER), OPTIONS)
    assert answers_of(parts.folder) == answers_of(whole.folder)
    assert answer_prompts(target, prompts, parts, OPTIONS).left == 0


def test_more_prompts_later_do_not_change_the_answers_of_those_before(tmp_path, target, prompts):
    store, all_at_once = AnswerStore(tmp_path / "a", HEADER), AnswerStore(tmp_path / "b", HEADER)
    answer_prompts(target, prompts[:20], store, OPTIONS)
    answer_prompts(target, prompts, store, OPTIONS)
    answer_prompts(target, prompts, all_at_once, OPTIONS)
    assert answers_of(store.folder) == answers_of(all_at_once.folder)


def test_what_gets_no_answer_is_counted_and_not_tried_again(tmp_path, target):
    path = write_prompts(tmp_path / "p.jsonl", ["short", "x" * 100, "y" * 200])
    system = {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]}
    path.write_text(path.read_text() + json.dumps(system) + "\n")
    store = AnswerStore(tmp_path / "data", HEADER)
    brief = AnswerOptions(max_prompt_tokens=40, max_new_tokens=2)
    done = answer_prompts(target, read_prompts([path]), store, brief)
    assert done.left_out == {TOO_LONG: 2, "the chat template refuses it": 1, TOO_SHORT: 1}
    assert store.contents().left_out == {TOO_LONG: 2, TOO_SHORT: 1}
    again = answer_prompts(target, read_prompts([path]), store, brief)
    assert (again.left, again.left_out) == (1, {"the chat template refuses it": 1})


def test_a_template_that_refuses_everything_is_an_error_and_leaves_no_mark(tmp_path, target):
    record = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "?"}]}
    path = tmp_path / "p.jsonl"
    rows = [{"messages": [record["messages"][0], {"role": "user", "content": f"{i}"}]} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = AnswerStore(tmp_path / "data", HEADER)
    with pytest.raises(RequestError, match="refuses every prompt: no system messages"):
        answer_prompts(target, read_prompts([path]), store, OPTIONS)
    assert store.done() == set()


def test_lengths_that_the_target_cannot_take_are_refused_before_anything_is_run(tmp_path, target, prompts):
    store = AnswerStore(tmp_path / "data", HEADER)
    with pytest.raises(RequestError, match="takes 2048 positions in all"):
        answer_prompts(target, prompts, store, AnswerOptions(max_prompt_tokens=2000, max_new_tokens=100))


def test_a_command_that_fails_before_its_first_answer_does_not_claim_the_folder(tmp_path, folder, capsys):
    write_prompts(tmp_path / "prompts.jsonl", ["What is two and two?", "x" * 100])
    assert run_here(command(tmp_path / "nowhere", tmp_path, "out")) == 2
    assert "nowhere" in capsys.readouterr().err
    # As versions before left it.
    (tmp_path / "out/dataset.json").write_text('{"format": 1, "target": "nowhere"}')
    assert run_here(command(folder, tmp_path, "out")) == 0
    assert json.loads((tmp_path / "out/dataset.json").read_text())["target"] == str(folder)
    assert run_here(command(tmp_path / "nowhere", tmp_path, "out")) == 2
    assert "was begun with target" in capsys.readouterr().err


def collect(store, prompts):
    with Collector(store, OPTIONS, 60, 60) as collector:
        for prompt in prompts:
            collector.answer(prompt, [1], [2, 3, 4, 5], "stop")


def test_an_interrupt_right_after_a_shard_was_written_does_not_write_it_twice(tmp_path, prompts):
    store = AnswerStore(tmp_path / "data", HEADER)
    write, interrupted = store.add, []

    def add(answers):
        write(answers)
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    store.add = add
    with pytest.raises(KeyboardInterrupt):
        collect(store, prompts[:10])
    assert len(answers_of(store.folder)) == 10


def command(folder, tmp_path, out, *more):
    return [
        *("data", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path / out), "--target", str(folder)),
        *("-n", "24", "--max-prompt-tokens", "40", "--temperature", "1", "--max-batch", "2"),
        *("--fast", "off", *more),
    ]


def run_here(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code or 0


def start(arguments):
    """The real command in a process of its own, with shards of ten so that a kill finds some."""
    code = (
        "import sys; from dflash_core.training.data import answering;"
        "original = answering.Collector.__init__;\n"
        "def init(self, *given):\n    original(self, *given)\n    self._size = 10\n"
        "answering.Collector.__init__ = init\n"
        "from dflash_core.cli import main; main(sys.argv[1:])"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for_shards(folder, count):
    for _ in range(6000):
        if len(shards(folder)) >= count:
            return
        time.sleep(0.05)
    pytest.fail(f"no {count} shards after minutes")


def test_killed_twice_and_gone_on_with_each_prompt_is_answered_once_and_the_same(tmp_path, folder, capsys):
    write_prompts(tmp_path / "prompts.jsonl", [f"the question of number {i}" for i in range(240)])
    for kills in (1, 4):
        process = start(command(folder, tmp_path, "killed"))
        wait_for_shards(tmp_path / "killed", kills)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    survived = len(answers_of(tmp_path / "killed"))
    assert 0 < survived < 240
    assert run_here(command(folder, tmp_path, "killed", "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert run_here(command(folder, tmp_path, "whole", "--json")) == 0
    assert answers_of(tmp_path / "killed") == answers_of(tmp_path / "whole")
    assert report["new_answers"] == report["answers"] - survived
    assert report["answers"] + sum(report["left_out_in_all"].values()) == report["used"] == 240
    assert report["waiting"] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_writes_what_is_finished_and_says_how_to_go_on(tmp_path, folder, number):
    write_prompts(tmp_path / "prompts.jsonl", [f"the question of number {i}" for i in range(2000)])
    process = start(command(folder, tmp_path, "stopped"))
    wait_for_shards(tmp_path / "stopped", 1)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 130
    assert "Stopping; what is finished is being written" in err
    assert f"answers are safe in {tmp_path / 'stopped'}. The same command goes on from there." in err
    assert "waiting" in out
    assert len(answers_of(tmp_path / "stopped")) > 0


def test_when_everything_is_answered_the_target_is_not_even_loaded(tmp_path, folder, capsys, monkeypatch):
    write_prompts(tmp_path / "prompts.jsonl", ["What is two and two?", "Why is the sky blue?"])
    assert run_here(command(folder, tmp_path, "out", "--json")) == 0
    first = json.loads(capsys.readouterr().out)
    monkeypatch.setattr("dflash_core.loading.load_target", None)
    assert run_here(command(folder, tmp_path, "out", "--json")) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["new_answers"] == again["waiting"] == 0
    assert again["answers"] == first["answers"]


def test_the_command_says_what_it_left_out(tmp_path, folder, capsys):
    texts = ["What is  two and two?", "What is two and two?", "Why is the sky blue?", "z" * 300]
    write_prompts(tmp_path / "prompts.jsonl", texts)
    held = write_prompts(tmp_path / "held.jsonl", ["why is the SKY blue?!"])
    assert run_here(command(folder, tmp_path, "out", "--keep-out", str(held))) == 0
    out = capsys.readouterr().out
    rows = {
        cells[1].strip(): cells[2].strip() for line in out.splitlines() if len(cells := line.split("│")) > 3
    }
    assert rows["duplicates left out"] == "1"
    assert rows[f"in {held}, left out"] == "1"
    assert rows["left out: the prompt is too long"] == "1"
    assert rows["in humaneval, left out"] == "0"


def test_what_prompts_could_not_be_compared_with_is_kept_until_it_is_made_good(
    tmp_path, folder, capsys, monkeypatch
):
    write_prompts(tmp_path / "prompts.jsonl", ["What is two and two?", "Why is the sky blue?"])
    with monkeypatch.context() as patch:
        patch.setitem(sets.SETS, "gsm8k", sets.PromptSet("not-installed-at-all", "x.jsonl", str))
        assert run_here(command(folder, tmp_path, "out")) == 0
    assert "the prompts were not compared with gsm8k" in capsys.readouterr().err
    assert read_header(tmp_path / "out")["compared"] == ["humaneval", "mtbench"]
    write_prompts(tmp_path / "prompts.jsonl", ["What is two and two?"])
    assert run_here(command(folder, tmp_path, "out")) == 0
    assert read_header(tmp_path / "out")["compared"] == ["humaneval", "mtbench"]
    write_prompts(tmp_path / "prompts.jsonl", ["What is two and two?", "Why is the sky blue?"])
    assert run_here(command(folder, tmp_path, "out")) == 0
    assert read_header(tmp_path / "out")["compared"] == ["gsm8k", "humaneval", "mtbench"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--model", "x"], "--model is about an endpoint"),
        (["--template", "nonsense"], "it must be name=value"),
        (["--dtype", "int8"], "dtype"),
        (["--endpoint", "localhost:8000"], "is no address of an endpoint"),
        (
            ["--endpoint", "http://localhost:1/v1", "--api-key-env", "NO_SUCH_VARIABLE_HERE"],
            "no such variable",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(tmp_path, folder, capsys, more, named):
    write_prompts(tmp_path / "prompts.jsonl", ["a"])
    assert run_here(command(folder, tmp_path, "out", *more)) == 2
    err = capsys.readouterr().err
    assert named in err
    assert len(err.strip().splitlines()) == 1


def test_a_template_variable_that_is_no_json_is_a_string():
    deep = "[" * 100_000
    assert template_variables(["a=1", "b=on", f"c={deep}"]) == {"a": 1, "b": "on", "c": deep}


def test_template_variables_decide_the_answers_so_they_are_kept_with_them(tmp_path, folder, capsys):
    write_prompts(tmp_path / "prompts.jsonl", ["a"])
    assert run_here(command(folder, tmp_path, "out", "--template", "enable_thinking=false")) == 0
    header = json.loads((tmp_path / "out/dataset.json").read_text())
    assert header["template"] == {"enable_thinking": False}
    assert run_here(command(folder, tmp_path, "out")) == 2
    assert "begun with template" in capsys.readouterr().err
