"""What a store of answers holds is whole, made in one way, and by one process at a time."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from dflash_core.errors import DFlashError
from dflash_core.training.data.answering import TOO_LONG
from dflash_core.training.data.store import Answer, AnswerStore, read_header, read_sequences, records

HEADER = {"target": "tiny"}


def one_answer(id="a"):
    return Answer([1, 2], [3, 4, 5, 6], {"id": id, "source": "s"})


def test_what_is_claimed_of_the_prompts_holds_for_those_of_all_answers(tmp_path):
    store = AnswerStore(tmp_path / "data", HEADER)
    store.note_compared(["a", "b"], {"gsm8k": 1}, {"mtbench": "not installed"})
    store.add([one_answer("a")])
    assert read_header(store.folder) == {"format": 1, **HEADER, "compared": ["gsm8k"]}
    assert json.loads((store.folder / "compared.json").read_text()) == {
        "compared": {"gsm8k": 1},
        "not_compared": {"mtbench": "not installed"},
    }
    store.note_compared(["c"], {"gsm8k": 0, "mtbench": 0}, {})
    assert read_header(store.folder)["compared"] == ["gsm8k"], "a was not compared with mtbench"
    store.note_compared(["a", "c"], {"gsm8k": 0, "mtbench": 0}, {})
    assert read_header(store.folder)["compared"] == ["gsm8k", "mtbench"]
    AnswerStore(store.folder, HEADER).add([one_answer("c")])


@pytest.mark.parametrize("content", [None, b"nonsense", b"[1]", b'{"compared": 1}'])
def test_answers_without_a_record_of_what_they_were_compared_with_claim_nothing(tmp_path, content):
    store = AnswerStore(tmp_path / "data", HEADER)
    store.add([one_answer("a")])
    if content is not None:
        (store.folder / "compared.json").write_bytes(content)
    assert read_header(store.folder)["compared"] == []
    store.note_compared(["b"], {"gsm8k": 0}, {})
    assert read_header(store.folder)["compared"] == []


def test_a_folder_in_which_nothing_was_begun_has_no_answers(tmp_path):
    for folder in (tmp_path / "nowhere", AnswerStore(tmp_path / "data", HEADER).folder):
        with pytest.raises(
            DFlashError, match=r"dataset\.json cannot be read: No such .* has no answers; `df"
        ):
            read_header(folder)
    AnswerStore(tmp_path / "data", HEADER).add([one_answer()])
    (tmp_path / "data/dataset.json").unlink()
    with pytest.raises(DFlashError, match=r"dataset\.json cannot be read: No such file or directory\.$"):
        read_header(tmp_path / "data")


def read_all(folder):
    store = AnswerStore(folder, HEADER)
    return store.done(), store.contents()


def test_other_settings_are_not_mixed_into_a_folder(tmp_path):
    late = AnswerStore(tmp_path / "data", {"target": "a", "seed": 2})
    AnswerStore(tmp_path / "data", {"target": "a", "seed": 1}).add([one_answer()])
    AnswerStore(tmp_path / "data", {"target": "a", "seed": 1})
    with pytest.raises(DFlashError, match=r"begun with seed = 1, not 2\. Go on with the same"):
        AnswerStore(tmp_path / "data", {"target": "a", "seed": 2})
    with pytest.raises(DFlashError, match="begun with seed = 1, not 2"):
        late.leave_out({"a": TOO_LONG})


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("dataset.json", b"{", "dataset.json is damaged"),
        ("dataset.json", b"[]", "dataset.json is damaged"),
        ("dataset.json", b"[" * 100_000, "dataset.json is damaged"),
        ("dataset.json", b"\xff\xff", "dataset.json is damaged"),
        ("dataset.json", None, "has shards and no dataset.json"),
        ("shard-00000.jsonl", None, "shard-00000.jsonl cannot be read"),
        ("shard-00000.jsonl", b"nonsense", "shard-00000.jsonl is damaged"),
        ("shard-00000.jsonl", b"[]", "shard-00000.jsonl is damaged"),
        ("shard-00000.safetensors", b"nonsense", "shard-00000.safetensors is damaged"),
        ("shard-00000.safetensors", b"", "shard-00000.safetensors is damaged"),
        ("left-out.jsonl", b"nonsense", "left-out.jsonl is damaged"),
        ("left-out.jsonl", b"[" * 100_000, "left-out.jsonl is damaged"),
        ("shard-00000.jsonl", b"[" * 100_000, "shard-00000.jsonl is damaged"),
    ],
)
def test_a_damaged_file_is_one_sentence_that_names_it(tmp_path, name, content, named):
    folder = tmp_path / "data"
    AnswerStore(folder, HEADER).add([one_answer()])
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(DFlashError) as caught:
        read_all(folder)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_shard_that_was_torn_in_two_does_not_count(tmp_path):
    store = AnswerStore(tmp_path / "data", HEADER)
    store.add([one_answer("a")])
    torn = store.folder / "shard-00001.jsonl"
    torn.write_text(json.dumps({"id": "b", "source": "s"}) + "\n")
    (store.folder / ".shard-00001.safetensors.77.part").write_bytes(b"half")
    with store.alone():
        assert store.done() == {"a"}
        store.add([one_answer("c")])
    assert store.done() == {"a", "c"}
    assert not list(store.folder.glob(".*.part"))


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    store = AnswerStore(tmp_path / "data", HEADER)
    with store.alone():
        other = AnswerStore(tmp_path / "data", HEADER)
        with pytest.raises(DFlashError, match="Another process is writing to"), other.alone():
            pass
    with other.alone():
        pass
    (store.folder / ".lock").unlink()
    (store.folder / ".lock").mkdir()
    with pytest.raises(DFlashError, match="cannot be written to"), store.alone():
        pass


FULL = """
import resource, sys
from pathlib import Path
from dflash_core.errors import DFlashError
from dflash_core.training.data.store import Answer, AnswerStore
folder = Path(sys.argv[1])
store = AnswerStore(folder, {"target": "tiny"})
answer = Answer([1] * 400, [2] * 400, {"id": "a", "source": "s"})
store.add([answer])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
for work in (lambda: store.add([answer]), lambda: store.leave_out({"x" * 3000: "why"})):
    try:
        work()
    except DFlashError as error:
        print(error)
"""


def test_a_full_disk_ends_in_a_sentence_and_harms_nothing(tmp_path):
    folder = tmp_path / "data"
    command = [sys.executable, "-c", FULL, str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 2
    assert all("cannot be written: File too large. Earlier shards are safe" in line for line in said)
    assert len(read_sequences(folder)) == 1
    assert not list(folder.glob(".*.part"))


def test_the_format_on_disk_is_the_one_that_is_documented(tmp_path):
    store = AnswerStore(tmp_path / "data", HEADER)
    store.add([one_answer("a"), one_answer("b")])
    data = load_file(store.folder / "shard-00000.safetensors")
    assert {name: tensor.dtype for name, tensor in data.items()} == {
        "tokens": torch.int32,
        "loss": torch.uint8,
        "offsets": torch.int64,
    }
    assert data["offsets"].tolist() == [0, 6, 12]
    assert json.loads((store.folder / "dataset.json").read_text()) == {"format": 1, "target": "tiny"}
    assert [one["id"] for one in records(store.folder / "shard-00000.safetensors")] == ["a", "b"]
