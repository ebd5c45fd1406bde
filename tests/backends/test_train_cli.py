"""`dflash-core train` from the outside: killed at any moment, it becomes the same run."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_folder import tiny_folder

from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.cli import main, train
from dflash_core.cli.train import dtype_on, train_command
from dflash_core.errors import DFlashError, SettingsError
from dflash_core.training.data.store import Answer, AnswerStore
from dflash_core.training.folder import alone

STEPS = 300

SMALL = {
    **{"layers": 1, "taps": "1,3", "mask_token_id": 3, "start": "random", "block_size": 4},
    **{"steps": 2, "batch": 4, "anchors": 4},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("target"), layers=6)


@pytest.fixture(scope="module")
def data(tmp_path_factory, target):
    """Answers that repeat after a few tokens, so that there is something to learn."""
    folder = tmp_path_factory.mktemp("data")
    store = AnswerStore(folder, {"target": str(target), "seed": 0})
    generator = torch.Generator().manual_seed(0)
    answers = []
    for number in range(140):
        period = torch.randint(4, 40, (5,), generator=generator).tolist()
        answers.append(Answer([1, 5, 2], period * 6, {"id": str(number), "source": "made up"}))
    store.add(answers)
    return folder


def start(target, data, out, *more, launcher=()):
    command = [
        *(sys.executable, *launcher, "-m", "dflash_core", "train"),
        *("--target", str(target), "--data", str(data)),
        *("--out", str(out), "--layers", "1", "--taps", "1,3", "--mask-token-id", "3", "--start", "random"),
        *("--steps", str(STEPS), "--batch", "4", "--anchors", "4", "--block-size", "4", *more),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def losses(out):
    """Step -> loss; of a step that was done twice the later line."""
    path = out / "log.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return {line["step"]: line["loss"] for line in lines}


def wait_for(condition, process):
    for _ in range(3000):
        if condition() or process.poll() is not None:
            return
        time.sleep(0.02)


def test_a_run_that_is_killed_and_resumed_is_the_same_to_the_last_bit(tmp_path, target, data):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = start(target, data, whole)
    out, errors = done.communicate(timeout=300)
    assert done.returncode == 0, errors
    for steps in (50, 150):
        process = start(target, data, killed, "--save-every", "0.05")
        wait_for(lambda steps=steps: max(losses(killed), default=0) >= steps, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
    again = start(target, data, killed, "--save-every", "0.05")
    _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert losses(killed) == losses(whole)
    ours, theirs = (load_file(folder / "state.safetensors") for folder in (killed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert load_checkpoint(killed / "draft").spec == load_checkpoint(whole / "draft").spec

    card = (killed / "draft" / "README.md").read_text()
    assert f"step {STEPS}" in card
    assert "140 answers" in card
    inspected = subprocess.run(
        [sys.executable, "-m", "dflash_core", "validate", out.strip(), "--target", str(target)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert inspected.returncode == 0, inspected.stdout + inspected.stderr


@pytest.mark.slow
def test_two_launched_processes_are_one_run_that_can_be_killed(tmp_path, target, data):
    """And of which only one speaks."""
    psutil = pytest.importorskip("psutil", reason="comes with accelerate, and finds the processes to kill")
    short = ("--steps", "60", "--save-every", "0", "--device", "cpu")
    launched = tmp_path / "launched"
    alone = start(target, data, tmp_path / "alone", *short)
    assert alone.wait(timeout=300) == 0, alone.stderr.read()

    first = start(target, data, launched, *short, launcher=launch())
    wait_for((launched / "state.safetensors").exists, first)
    for process in (*psutil.Process(first.pid).children(recursive=True), first):
        process.kill()
    first.communicate()
    assert 60 not in losses(launched), "it was done before it could be killed"

    second = start(
        target, data, launched, *short, "--accumulate", "2", "--features", "none", launcher=launch()
    )
    out, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    assert out.strip() == str(launched / "draft")
    assert errors.count("60 of 60 steps") == errors.count("step 60/60") == 1
    assert losses(launched)[60] == pytest.approx(losses(tmp_path / "alone")[60], rel=1e-5)
    assert load_checkpoint(launched / "draft").spec == load_checkpoint(tmp_path / "alone" / "draft").spec


def launch():
    """What starts a module in two processes on the CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    counts = ("--num_machines", "1", "--num_processes", "2", "--main_process_port", str(port))
    return "-m", "accelerate.commands.launch", "--multi_gpu", *counts


def test_distillation_uses_the_hidden_states_that_are_there(tmp_path, target, data, capsys):
    """And says what is added to them; a run without it neither writes nor reads that."""
    features = tmp_path / "features"
    small = {**SMALL, "features": features}
    train_command(str(target), data, tmp_path / "plain", **small)
    assert "likeliest" not in capsys.readouterr().err
    before = {path.name: path.stat().st_mtime_ns for path in features.glob("[!.]*")}
    assert sorted(before) == ["features.json", "shard-00000.bf16"]

    train_command(str(target), data, tmp_path / "distilled", distill=0.5, **small)
    said = capsys.readouterr()
    assert "The target's likeliest tokens take 0.00 GiB more." in said.err
    after = {path.name: path.stat().st_mtime_ns for path in features.glob("[!.]*")}
    assert sorted(after.keys() - before.keys()) == ["shard-00000.top8", "top8.json"]
    assert all(after[name] == before[name] for name in before)
    assert "| distill | 0.5 |" in (tmp_path / "distilled" / "draft" / "README.md").read_text()

    (features / "shard-00000.top8").write_bytes(b"rubbish")
    train_command(str(target), data, tmp_path / "again", **small)
    ours, theirs = (load_file(tmp_path / name / "state.safetensors") for name in ("plain", "again"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_finished_draft_keeps_its_mask_token(tmp_path, target, data):
    """Weights that were trained with one are worth nothing with another."""
    train_command(str(target), data, tmp_path, **SMALL)
    with pytest.raises(DFlashError, match="holds a run with mask_token_id = 3, not 2"):
        train_command(str(target), data, tmp_path, **{**SMALL, "mask_token_id": 2})
    assert load_checkpoint(tmp_path / "draft").spec.mask_token_id == 3


def test_a_run_goes_on_with_its_own_answers_only(tmp_path, target, data):
    """More of them are others as well: which are held out, and in which order they come, is not the same."""
    for name in ("grown", "others"):
        shutil.copytree(data, tmp_path / name)
    AnswerStore(tmp_path / "grown", {"target": str(target), "seed": 0}).add(
        [Answer([1], [5, 6, 7], {"id": "x", "source": "made up"})]
    )
    shard = tmp_path / "others" / "shard-00000.safetensors"
    content = load_file(shard)
    content["tokens"][7] += 1
    save_file(content, shard)
    train_command(str(target), data, tmp_path / "run", **SMALL)
    for name in ("grown", "others"):
        with pytest.raises(DFlashError, match=r"holds a run with answers = '140 sequences, .*--start "):
            train_command(str(target), tmp_path / name, tmp_path / "run", **SMALL)
    moved = shutil.copytree(data, tmp_path / "moved")
    train_command(str(target), moved, tmp_path / "run", **SMALL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_so_after_it_has_saved(tmp_path, target, data, monkeypatch, number):
    """In its exit code, so that a script does not take half a draft for a whole one."""
    with monkeypatch.context() as patch:
        patch.setattr(train, "report", lambda *_: os.kill(os.getpid(), number))
        with pytest.raises(KeyboardInterrupt):
            train_command(str(target), data, tmp_path, **{**SMALL, "steps": 60})
    assert (tmp_path / "draft" / "README.md").exists()
    assert load_checkpoint(tmp_path / "draft").spec.block_size == 4
    train_command(str(target), data, tmp_path, **{**SMALL, "steps": 60})
    assert max(losses(tmp_path)) == 60


def test_a_full_disk_is_noticed_before_the_hidden_states(tmp_path, target, data, monkeypatch):
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: free)
        with pytest.raises(DFlashError, match=r"need 0\.00 GiB more, but its disk has 0\.00 GiB free"):
            train_command(str(target), data, tmp_path / "run", **SMALL)
    assert not (tmp_path / "run" / "run.json").exists()
    assert not (tmp_path / "run" / "features").exists()


def test_hidden_states_that_are_not_kept_teach_the_same(tmp_path, target, data):
    """To the last bit, and with nothing of them on disk; what was likely is kept, so it needs a folder."""
    more = {**SMALL, "steps": 5, "start": "target", "noise": 0.05}
    train_command(str(target), data, tmp_path / "kept", **more)
    train_command(str(target), data, tmp_path / "fresh", **more, features="none")
    ours, theirs = (load_file(tmp_path / name / "state.safetensors") for name in ("fresh", "kept"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not (tmp_path / "fresh" / "features").exists()
    with pytest.raises(SettingsError, match=r"distill is 0\.5.*--features"):
        train_command(str(target), data, tmp_path / "distilled", **SMALL, features="none", distill=0.5)
    assert not (tmp_path / "distilled").exists()


def test_the_optimisers_numbers_are_flags(tmp_path, target, data):
    short = [item for name, value in SMALL.items() for item in (f"--{name.replace('_', '-')}", str(value))]
    given = ("--weight-decay", "0.1", "--warm-up", "0.5", "--clip", "0.25")
    command = ["train", "--target", str(target), "--data", str(data), "--out", str(tmp_path), *short, *given]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert not ended.value.code
    known = json.loads((tmp_path / "run.json").read_text())
    assert (known["weight_decay"], known["warmup"], known["clip"]) == (0.1, 0.5, 0.25)


def test_the_passes_are_in_16_bit_on_a_gpu_only(tmp_path, target, data, monkeypatch):
    """Unless something else is asked for."""
    cpu, gpu = torch.device("cpu"), torch.device("cuda:1")
    assert (dtype_on(cpu), dtype_on(gpu)) == ("float32", "bfloat16")
    assert dtype_on(gpu, "float16") == "float16"
    monkeypatch.setattr(train, "dtype_on", lambda device, asked: dtype_on(gpu, asked))
    train_command(str(target), data, tmp_path, **SMALL)
    assert json.loads((tmp_path / "run.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("own", [False, True], ids=["made up", "own data"])
def test_the_profile_of_a_step_can_be_repeated(tmp_path, target, data, own):
    train_command(str(target), data, tmp_path, **SMALL)
    script = Path(__file__).parents[2] / "benchmarks" / "training_step.py"
    more = ("--data", str(data)) if own else ("--tokens", "40")
    done = subprocess.run(
        [
            *(sys.executable, str(script), "--target", str(target), "--draft", str(tmp_path / "draft")),
            *("--steps", "1", "--batch", "2", "--anchors", "3", "--device", "cpu", "--json", *more),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens_per_second"] > 0
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert 0 < found["shares"]["aten::mm"] <= found["matrix_products"] < 1


def test_two_commands_do_not_train_in_one_folder(tmp_path, target, data):
    with alone(tmp_path / "run"), pytest.raises(DFlashError, match=r"Another process is writing to .*run"):
        train_command(str(target), data, tmp_path / "run", **SMALL)
    assert not (tmp_path / "run" / "features").exists()


def test_what_is_wrong_with_the_answers_is_said_before_anything_is_loaded_or_claimed(tmp_path, data):
    run, empty = tmp_path / "run", tmp_path / "empty"
    AnswerStore(empty, {"seed": 0})
    (tmp_path / "headless").mkdir()
    for answers, batch, said in (
        (tmp_path / "nowhere", 4, r"dataset\.json cannot be read"),
        (tmp_path / "headless", 4, r"dataset\.json cannot be read"),
        (empty, 4, "has no answers"),
        (data, 500, r"137 training sequences, fewer than a batch \(500\)"),
    ):
        with pytest.raises(DFlashError, match=said):
            train_command("no target at all", answers, run, **{**SMALL, "batch": batch})
    assert not run.exists()


def test_a_refused_command_leaves_the_folder_to_the_next_one(tmp_path, target, data):
    """Also when it is refused for what is in the folder of hidden states."""
    features = tmp_path / "features"
    train_command(str(target), data, tmp_path / "first", **SMALL, features=features)
    with pytest.raises(DFlashError, match="use another folder"):
        train_command(str(target), data, tmp_path / "run", **{**SMALL, "taps": "0,2"}, features=features)
    train_command(str(target), data, tmp_path / "run", **SMALL, features=features)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--start", "/nowhere"), 'start is "/nowhere", which is no folder'),
        (("--draft-vocab", "/nowhere.json"), "draft_vocab is the file /nowhere.json, which cannot be read"),
        (("--draft-vocab", "100000"), "draft_vocab is 100000; it must be from 1 to"),
    ],
)
def test_what_will_be_refused_is_refused_before_the_hidden_states(tmp_path, target, data, more, said):
    process = start(target, data, tmp_path / "run", *more)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert said in errors
    assert not (tmp_path / "run").exists()
