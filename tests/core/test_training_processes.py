"""However a run is carried out, in parts or in several processes, it learns the same."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from drafter_spec import small_spec
from test_training import corpus
from training_worker import STEPS, trainer

from dflash_core.errors import SettingsError, UnsupportedError
from dflash_core.training.batches import collate, noise
from dflash_core.training.execution import Execution
from dflash_core.training.processes import Alone, alike, joined
from dflash_core.training.run import load_state, read_log

TESTS = Path(__file__).parents[1]


def test_rows_come_as_they_would_among_all():
    text = corpus(small_spec())
    whole = collate(text, text.training[:8], anchors=6, slots=5, seed=7)
    added = noise(whole.taps, range(8), 0.1, seed=3)
    for rows in (range(2), range(2, 5), range(5, 8)):
        part = collate(text, text.training[:8], 6, 5, 7, rows)
        for name in ("taps", "anchors", "anchor_tokens", "labels"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rows.start : rows.stop]), name
        assert torch.equal(noise(part.taps, rows, 0.1, 3), added[rows.start : rows.stop])
    assert added.any(-1).any(-1).all()


@pytest.mark.parametrize("there", [24, 17, 3])
def test_every_row_is_computed_once(there):
    found = [
        row
        for rank in range(3)
        for rows in Execution(Alone(rank=rank, count=3), accumulate=2).rows(24, there)
        for row in rows
    ]
    assert sorted(found) == list(range(there))


def test_a_batch_that_cannot_be_shared_out_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"multiple of 3 \(accumulate\) x 1 \(processes\)"):
        trainer(tmp_path, Execution(accumulate=3))
    with pytest.raises(SettingsError, match="accumulate is 0"):
        Execution(accumulate=0)


def losses(folder, model, run):
    progress = load_state(folder, model, run._optimizer)
    return progress.step, list(progress.pending)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Losses of the first steps in one process and one part, the last line, and the weights."""
    folder = tmp_path_factory.mktemp("alone")
    run, model = trainer(folder, Execution())
    steps = iter(range(STEPS - 4))
    run.train(keep_going=lambda: next(steps, None) is not None)
    begun = losses(folder, model, run)
    run.train()
    return begun, read_log(folder)[-1], model


def assert_alike(model, other):
    for name in model.names:
        torch.testing.assert_close(model.parameter(name), other.parameter(name), rtol=1e-3, atol=1e-4)


def test_parts_of_a_batch_add_up_to_it(tmp_path, alone):
    run, model = trainer(tmp_path, Execution(accumulate=4))
    run.train()
    line = read_log(tmp_path)[-1]
    assert line.loss == pytest.approx(alone[1].loss, rel=1e-5)
    assert (line.tokens, line.acceptance_length) == (alone[1].tokens, alone[1].acceptance_length)
    assert_alike(model, alone[2])


def test_gradients_of_parts_add_up_to_those_of_the_batch(tmp_path):
    """Themselves, since clipping and the optimiser forgive a wrong scale."""
    found = []
    for parts in (1, 4):
        run, model = trainer(tmp_path / str(parts), Execution(accumulate=parts), clip=1e9)
        run._step(next(run._feed.steps(0)), 0)
        found.append({name: model.parameter(name).grad for name in model.names})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-5)


def test_a_compiled_forward_learns_the_same(tmp_path, alone, monkeypatch):
    """Traced as a compiler would, without the minutes that it takes to compile."""
    traced, compile_ = [], torch.compile

    def trace(model):
        traced.append(model)
        return compile_(model, backend="eager", fullgraph=True)

    monkeypatch.setattr(torch, "compile", trace)
    run, model = trainer(tmp_path, Execution(compiled=True))
    run.train()
    assert traced == [model]
    assert read_log(tmp_path)[-1].loss == pytest.approx(alone[1].loss, rel=1e-5)


def together(folder, what="stops", step=1000):
    """Both processes' exit codes, and what they said on standard error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **{"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS / "core"))),
    }
    command = [sys.executable, str(TESTS / "training_worker.py"), str(folder), what, str(step)]
    both = [
        subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    ]
    said = [process.communicate(timeout=300)[1] for process in both]
    return [process.returncode for process in both], said


def test_two_processes_learn_what_one_learns(tmp_path, alone):
    """Each in two parts; the second asks for a stop, both do, and both go on."""
    pytest.importorskip("accelerate", reason="several processes need accelerate")
    codes, said = together(tmp_path, "stops", STEPS - 4)
    assert codes == [0, 0], said
    run, model = trainer(tmp_path, Execution())
    step, begun = losses(tmp_path, model, run)
    assert step == STEPS - 4
    torch.testing.assert_close(begun, alone[0][1], rtol=1e-5, atol=0)

    codes, said = together(tmp_path)
    assert codes == [0, 0], said
    assert losses(tmp_path, model, run)[0] == STEPS
    line = read_log(tmp_path)[-1]
    assert line.loss == pytest.approx(alone[1].loss, rel=1e-5)
    assert (line.tokens, line.acceptance_length) == (alone[1].tokens, alone[1].acceptance_length)
    assert_alike(model, alone[2])


@pytest.mark.parametrize(
    ("what", "code", "sentence"),
    [
        ("raises", 2, "Rank 1 cannot go on."),
        ("is killed", -signal.SIGKILL, "Another process of the run cannot be reached"),
    ],
)
def test_one_process_that_fails_ends_both_with_one_sentence(tmp_path, what, code, sentence):
    pytest.importorskip("accelerate", reason="several processes need accelerate")
    codes, said = together(tmp_path, what, 3)
    assert codes[1] == code
    assert codes[0] not in (0, None)
    errors = [line for text in said for line in text.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert sentence in errors[0]
    assert "Traceback" not in said[0] + said[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [("gpu", "it must be cpu, cuda"), ("cuda:99", "choose another"), ("meta", "must be cpu")],
)
def test_a_device_that_is_not_there_is_refused(name, said):
    with pytest.raises(SettingsError, match=said), joined(name):
        pass


def test_without_a_launcher_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined("cpu") as found:
        assert (found.rank, found.count, found.device) == (0, 1, torch.device("cpu"))
        assert found.share(lambda: "made") == "made"


def test_several_processes_without_accelerate_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UnsupportedError, match=r'pip install "dflash-core\[train\]"'), joined("cpu"):
        pass


def test_processes_that_see_other_files_are_told_apart():
    class AndOne(Alone):
        """Besides there is one that has 3."""

        def sum(self, value):
            return value + torch.tensor([3, 9])

    assert alike(AndOne(count=2), 3)
    assert not alike(AndOne(count=2), 4)
    assert alike(Alone(), 4)
