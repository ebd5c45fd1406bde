"""A training run in its folder: which run it is, who works in it, and what is said of damaged files."""

import errno
import json
import math
import os
import shutil

import pytest
import torch
from drafter_spec import small_spec
from test_training import trainer

from dflash_core.cli.train import report
from dflash_core.errors import DFlashError, SettingsError
from dflash_core.spec import LayerSpec
from dflash_core.training.batches import Corpus
from dflash_core.training.beside import check_room, compute_beside, positions
from dflash_core.training.card import model_card
from dflash_core.training.data.store import Answer, AnswerStore
from dflash_core.training.features import Shard, read_shards, size_of
from dflash_core.training.folder import alone
from dflash_core.training.likely import size_of_likely
from dflash_core.training.options import TrainOptions
from dflash_core.training.run import LOG, RUN, Progress, begin, log, read_log

ABOUT = {"target": "toy", "mask_token_id": 16}


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"block_size": 1},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"gamma": -1.0},
        {"gamma": math.nan},
        {"gamma": math.inf},
        {"noise": -1.0},
        {"noise": math.nan},
        {"weight_decay": -0.1},
        {"weight_decay": math.nan},
        {"clip": 0.0},
        {"clip": math.nan},
        {"warmup": 1.0},
        {"dtype": "int8"},
        {"weighting": "x"},
        {"seed": 99999999999999999},
        {"seed": -1},
    ],
    ids=str,
)
def test_options_that_make_no_sense(changes):
    with pytest.raises(SettingsError, match=next(iter(changes))):
        TrainOptions(**changes)


def test_a_run_of_a_version_that_did_not_note_a_fact_notes_it_now(tmp_path):
    begin(tmp_path, TrainOptions(), {"target": "toy"})
    begin(tmp_path, TrainOptions(), ABOUT)
    assert json.loads((tmp_path / RUN).read_text())["mask_token_id"] == 16
    with pytest.raises(DFlashError, match="mask_token_id = 16, not 3"):
        begin(tmp_path, TrainOptions(), {**ABOUT, "mask_token_id": 3})


@pytest.fixture
def data(tmp_path):
    AnswerStore(tmp_path / "data", {}).add([Answer([1, 2], [3, 4, 5], {"id": "a", "source": "made up"})])
    return tmp_path / "data"


def compute(data, folder, **header):
    compute_beside(data, folder, "kind", "end", header, lambda content, one_more: b"content")


def test_a_damaged_shard_is_named_whoever_reads_it(tmp_path, data):
    features = tmp_path / "features"
    compute(data, features)
    (features / "shard-00000.bf16").touch()
    shard = data / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:40])
    for read in (
        lambda: positions([shard]),
        lambda: compute(data, tmp_path / "others"),
        lambda: read_shards(data, features, 8),
    ):
        with pytest.raises(DFlashError, match=r"shard-00000\.safetensors is damaged"):
            read()


def test_a_damaged_file_of_a_folder_is_named(tmp_path, data):
    compute(data, tmp_path / "features")
    (tmp_path / "features" / "kind.json").write_text("")
    with pytest.raises(DFlashError, match=r"kind\.json is damaged.*another folder"):
        compute(data, tmp_path / "features")
    (tmp_path / RUN).write_text("[1]")
    with pytest.raises(DFlashError, match=r"run\.json is damaged.*another folder"):
        begin(tmp_path, TrainOptions(), ABOUT)


def test_a_torn_line_of_the_log_is_left_out(tmp_path):
    """Even where the run went on behind it; it holds nothing that a resumed run needs."""
    lines = [Progress(step, 1.0, None, 10 * step, 0.5) for step in (50, 100, 150)]
    for line in lines:
        log(tmp_path, line)
    whole = (tmp_path / LOG).read_text().splitlines(keepends=True)
    (tmp_path / LOG).write_text(whole[0] + whole[1][:40] + whole[2] + '{"step": 7}\n' + "7\n" + whole[2])
    assert read_log(tmp_path) == [lines[0], lines[2]]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, data):
    """Nothing is below a file."""
    file = tmp_path / "file"
    file.touch()
    for write in (
        lambda: compute(data, file),
        lambda: compute(data, file / "below"),
        lambda: begin(file, TrainOptions(), ABOUT),
        lambda: log(file, Progress(1, 1.0, None, 1, 1.0)),
    ):
        with pytest.raises(DFlashError, match=r"file.* cannot be written"):
            write()


def test_a_full_disk_is_said_with_the_file(tmp_path, data, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("dflash_core.training.folder.write_whole", full)
    with pytest.raises(DFlashError, match=r"kind\.json cannot be written: No space left"):
        compute(data, tmp_path / "features")
    with pytest.raises(DFlashError, match=r"run\.json cannot be written: No space left"):
        begin(tmp_path, TrainOptions(), ABOUT)


def test_a_folder_is_one_commands_and_what_a_kill_left_behind_is_swept(tmp_path):
    folder = tmp_path / "run"
    with alone(folder):
        left = folder / ".state.safetensors.77.part"
        left.touch()
        with pytest.raises(DFlashError, match=r"Another process is writing to .*run"), alone(folder):
            pass
        assert left.exists()
    with alone(folder):
        assert not left.exists()


def test_hidden_states_are_computed_by_one_command(tmp_path, data):
    """Which others may read meanwhile, once they are all there."""
    features = tmp_path / "features"
    features.mkdir()
    left = features / ".shard-00000.end.77.part"
    left.touch()
    with (
        alone(features),
        pytest.raises(DFlashError, match=r"Another process is writing to .*features"),
    ):
        compute(data, features)
    left.touch()
    compute(data, features)
    assert not left.exists()
    with alone(features):
        compute(data, features)


def test_hidden_states_that_do_not_fit_on_the_disk_are_refused(tmp_path, data, monkeypatch):
    """What is there needs no more room; a folder that is not there yet is on its parent's disk."""
    folder = tmp_path / "not" / "yet"
    assert size_of(data, 8) == size_of(data, 8, folder) == 5 * 8 * 2
    folder.mkdir(parents=True)
    (folder / "shard-00000.bf16").touch()
    assert size_of(data, 8, folder) == 0
    assert size_of_likely(data, folder) == size_of_likely(data) > 0

    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    check_room(tmp_path / "neither" / "yet", 1000)
    with pytest.raises(DFlashError, match=r"has 0\.00 GiB free.*Make room"):
        check_room(tmp_path / "neither" / "yet", 1001)


@pytest.mark.parametrize(("every", "said"), [(3600.0, [1, 50, 60]), (0.0, list(range(1, 61)))])
def test_progress_is_said_after_the_first_step_and_then_every_so_often(tmp_path, monkeypatch, every, said):
    """In a resumed run after its first step, too; what is logged does not depend on the clock."""
    monkeypatch.setattr("dflash_core.training.trainer.SAY_EVERY", every)
    run, _ = trainer(tmp_path)
    heard = []
    run.train(heard.append)
    assert [progress.step for progress in heard] == said
    assert all(progress.loss > 0 and progress.tokens > 0 and progress.seconds > 0 for progress in heard)
    assert [line.step for line in read_log(tmp_path)] == [50, 60]

    steps = iter(range(20))
    trainer(tmp_path / "parts")[0].train(keep_going=lambda: next(steps, None) is not None)
    heard = []
    trainer(tmp_path / "parts")[0].train(heard.append)
    assert [progress.step for progress in heard[:2]] == [21, 50 if every else 22]
    assert read_log(tmp_path / "parts")[-1].loss == read_log(tmp_path)[-1].loss


def test_a_line_of_progress_says_tokens_a_second_and_what_is_left(capsys):
    report(Progress(10, 2.5, None, 5000, 50.0), 130)
    assert capsys.readouterr().err == "step 10/130  loss 2.500  100 tokens/s  10 min left\n"


def test_the_card_counts_in_plain_words():
    """One is not many."""
    shard = Shard(torch.zeros(8), torch.ones(8, dtype=torch.bool), torch.tensor([0, 3, 8]), torch.zeros(8, 1))
    spec = small_spec(layers=(LayerSpec(None, False),))
    card = model_card("toy", spec, Corpus.of([shard]), {}, TrainOptions(), [])
    assert "1 layer, taps" in card
    assert "1 answer held out" in card
    assert "2 answers of the target" in card
