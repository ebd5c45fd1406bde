"""What a stranger's files may try is refused in a sentence that names the file."""

import json
import os
import re
import time
from pathlib import Path

import pytest
import torch
from checkpoint_samples import (
    DIALECTS,
    SPECULATORS_1,
    ZLAB_1,
    ZLAB_2,
    entry,
    tensors_on_disk,
    write,
    write_header,
)
from safetensors.torch import save_file

from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.errors import CheckpointError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "draft", ZLAB_1)


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder, DIALECTS)
    return str(caught.value)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("config", [ZLAB_1, ZLAB_2, SPECULATORS_1], ids=["zlab", "zlab2", "speculators"])
def test_single_and_sharded_files_hold_the_same_tensors(tmp_path, config, shards):
    tensors = tensors_on_disk(config)
    loaded = load_checkpoint(write(tmp_path / "draft", config, tensors, shards), DIALECTS).tensors
    for name in loaded.keys() - {"d2t"}:
        assert torch.equal(loaded[name], tensors[name])
    assert tensors.keys() - loaded.keys() <= {"t2d"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (b"[]", "must hold a JSON object"),
        (b'{"block_size": 8, "block_size": 9}', "block_size stands there twice"),
        (b'{"rope_theta": NaN}', "the number NaN is not finite"),
        (b'{"rope_theta": -Infinity}', "the number -Infinity is not finite"),
        (b'{"rope_theta": 1e999}', "the number 1e999 is not finite"),
        (b'{"rope_theta": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "nested deeper than 32"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested deeper than 32"),
        (b'{"a": "' + b"x" * (1 << 20) + b'"}', "at most 1048576 are read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_must_be_strict_and_small_json(folder, text, named):
    (folder / CONFIG).write_bytes(text)
    message = refused(folder)
    assert named in message
    assert "draft/config.json" in message
    assert len(message) < 600


def test_many_equal_keys_are_refused_at_once(folder):
    keys = ",".join(f'"k{index}": 0' for index in range(60_000))
    (folder / CONFIG).write_text(f'{{{keys}, "k59999": 1}}')
    start = time.monotonic()
    assert "k59999 stands there twice" in refused(folder)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("header", "data", "named"),
    [
        ({"fc.weight": entry([2, 2], [0, 8])}, b"\0" * 6, "is it truncated?"),
        ({"fc.weight": entry([2, 2], [0, 8])}, b"\0" * 9, "accounts for"),
        ({"fc.weight": entry([2, 3], [0, 8])}, b"\0" * 8, "data_offsets span 8 bytes"),
        ({"fc.weight": entry([1 << 30, 1 << 30], [0, 1 << 61])}, b"", "accounts for"),
        ({"a": entry([4], [0, 8]), "b": entry([4], [4, 12])}, b"\0" * 12, "neither overlap nor leave gaps"),
        ({"a": entry([4], [0, 8]), "b": entry([4], [9, 17])}, b"\0" * 17, "neither overlap nor leave gaps"),
        ({"fc.weight": entry([4], [8, 0])}, b"\0" * 8, "data_offsets is [8, 0]"),
        ({"fc.weight": entry([-4], [0, 8])}, b"\0" * 8, "shape is [-4]"),
        ({"fc.weight": entry([4], [-8, 0])}, b"\0" * 8, "data_offsets"),
        ({"fc.weight": entry([True, 4], [0, 8])}, b"\0" * 8, "shape is [true, 4]"),
        ({"fc.weight": entry([1] * 9, [0, 2])}, b"\0" * 2, "shape"),
        ({"fc.weight": entry([4], [0, 8], "Q4_0")}, b"\0" * 8, "not a known dtype"),
        ({"fc.weight": {**entry([4], [0, 8]), "x": 1}}, b"\0" * 8, "exactly dtype, shape and data_offsets"),
        ({"fc.weight": 3}, b"", "exactly dtype, shape and data_offsets"),
        ({"__metadata__": 3}, b"", "__metadata__ is 3"),
        (b'{"a": 1, "a": 1}', b"", "a stands there twice"),
        (b"[]", b"", "must hold a JSON object"),
        (b"", b"", "is not JSON"),
    ],
)
def test_a_header_that_lies_is_refused_before_any_tensor_is_read(folder, header, data, named):
    write_header(folder, header, data)
    message = refused(folder)
    assert named in message
    assert "draft/model.safetensors" in message


def test_a_header_length_beyond_the_file_is_refused(folder):
    write_header(folder, {}, length=1 << 60)
    assert "claims 1152921504606846976 bytes of the 2 that follow" in refused(folder)
    (folder / WEIGHTS).write_bytes(b"abc")
    assert "has 3 bytes" in refused(folder)


def test_a_truncated_file_is_refused(folder):
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-100])
    assert "is it truncated?" in refused(folder)


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path):
    tensors = tensors_on_disk(ZLAB_1)
    fc = tensors.pop("fc.weight")
    near = write(tmp_path / "draft", ZLAB_1, {**tensors, "fc.weights": fc.clone()})
    assert "tensor fc.weight is missing. There is fc.weights" in refused(near)
    extra = write(tmp_path / "draft", ZLAB_1, {**tensors, "fc.weight": fc, "fc.bias": torch.zeros(3)})
    assert re.search(r"model\.safetensors: tensor fc\.bias is not understood", refused(extra))
    wide = write(tmp_path / "draft", ZLAB_1, {**tensors, "fc.weight": torch.zeros(32, 95)})
    assert "fc.weight has the shape [32, 95], but config.json asks for [32, 96]" in refused(wide)
    whole = write(
        tmp_path / "draft", ZLAB_1, {**tensors, "fc.weight": torch.zeros(32, 96, dtype=torch.int64)}
    )
    assert "fc.weight has the dtype I64; it must be F32 or BF16 or F16" in refused(whole)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("markov_head.markov_w1.weight", "Markov head"),
        ("prefix_gru.weight_ih_l0", "Domino"),
        ("layers.0.self_attn.qkv_proj.weight", "Laguna"),
        ("encoder.fc.weight", "Muse"),
        ("embed_tokens.weight", "borrows from the target"),
        ("verifier_norm.weight", "a copy of the target"),
    ],
)
def test_a_tensor_of_another_method_is_refused_by_name(tmp_path, name, what):
    folder = write(tmp_path / "draft", ZLAB_1, {**tensors_on_disk(ZLAB_1), name: torch.zeros(2)})
    message = refused(folder)
    assert name in message
    assert what in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_refused(tmp_path, value):
    tensors = tensors_on_disk(ZLAB_1)
    tensors["layers.1.mlp.up_proj.weight"][3, 4] = value
    message = refused(write(tmp_path / "draft", ZLAB_1, tensors))
    assert "model.safetensors: layers.1.mlp.up_proj.weight holds NaN or infinity" in message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda one: one["d2t"].fill_(0), "t2d does not mark exactly"),
        (lambda one: one["d2t"][-1:].fill_(64), "t2d does not mark exactly"),
        (lambda one: (one.pop("t2d"), one["d2t"][-1:].fill_(64)), "outside the vocabulary of 64"),
        (lambda one: (one.pop("t2d"), one["d2t"][0:2].copy_(torch.tensor([1, 0]))), "one token twice"),
        (lambda one: one.pop("d2t"), "tensor d2t is missing"),
        (lambda one: one.pop("lm_head.weight"), "tensor lm_head.weight is missing"),
        (lambda one: one.update(t2d=torch.zeros(64, dtype=torch.int64)), "t2d has the dtype I64"),
    ],
)
def test_a_vocabulary_map_must_lead_somewhere(tmp_path, change, named):
    tensors = tensors_on_disk(SPECULATORS_1)
    change(tensors)
    message = refused(write(tmp_path / "draft", SPECULATORS_1, tensors))
    assert named in message
    assert "draft" in message


def test_a_speculators_draft_may_leave_its_embedding_to_the_target(tmp_path):
    tensors = tensors_on_disk(SPECULATORS_1)
    assert load_checkpoint(write(tmp_path / "whole", SPECULATORS_1, tensors), DIALECTS).spec.owns_embedding
    tensors.pop("embed_tokens.weight")
    spec = load_checkpoint(write(tmp_path / "lean", SPECULATORS_1, tensors), DIALECTS).spec
    assert (spec.owns_embedding, spec.owns_head) == (False, True)


def test_a_wider_target_needs_an_embedding_of_the_drafts_own(tmp_path):
    config = {**SPECULATORS_1, "target_hidden_size": 40}
    tensors = tensors_on_disk(config)
    spec = load_checkpoint(write(tmp_path / "draft", config, tensors), DIALECTS).spec
    assert spec.tap_width == 3 * 40
    tensors.pop("embed_tokens.weight")
    assert "target_hidden_size is 40" in refused(write(tmp_path / "draft", config, tensors))


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path):
    secret = tmp_path / "secret.json"
    (folder / CONFIG).rename(secret)
    (folder / CONFIG).symlink_to(secret)
    assert "config.json is a link to a place outside the checkpoint folder" in refused(folder)


def test_a_link_inside_the_folder_or_to_the_folder_is_followed(folder, tmp_path):
    (folder / CONFIG).rename(folder / "real.json")
    (folder / CONFIG).symlink_to("real.json")
    (tmp_path / "alias").symlink_to(folder)
    assert load_checkpoint(tmp_path / "alias", DIALECTS).spec.block_size == 8


def test_a_snapshot_of_a_hugging_face_cache_is_followed_to_its_own_blobs_only(folder, tmp_path):
    repository = tmp_path / "hub/models--someone--draft"
    snapshot, blobs = repository / "snapshots/0123abc", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in (CONFIG, WEIGHTS):
        (folder / name).rename(blobs / f"blob-{name}")
        (snapshot / name).symlink_to(f"../../blobs/blob-{name}")
    assert load_checkpoint(snapshot, DIALECTS).spec.block_size == 8
    stranger = tmp_path / "hub/models--other--draft/blobs"
    stranger.mkdir(parents=True)
    (blobs / f"blob-{CONFIG}").rename(stranger / "blob")
    (snapshot / CONFIG).unlink()
    (snapshot / CONFIG).symlink_to(stranger / "blob")
    assert "outside the checkpoint folder" in refused(snapshot)


def test_what_is_no_regular_file_is_refused_without_waiting(folder):
    (folder / CONFIG).unlink()
    os.mkfifo(folder / CONFIG)
    assert "config.json is not a regular file" in refused(folder)
    (folder / CONFIG).unlink()
    (folder / CONFIG).mkdir()
    assert "config.json" in refused(folder)
    (folder / CONFIG).rmdir()
    (folder / CONFIG).symlink_to(CONFIG)
    assert "config.json" in refused(folder)


@pytest.mark.parametrize(
    ("shard", "named"),
    [
        ("../outside.safetensors", "must not contain folders"),
        ("sub/inside.safetensors", "must not contain folders"),
        ("none.safetensors", "none.safetensors does not exist"),
        ("nul\0.safetensors", "cannot be read"),
        ("model.bin", "must be a safetensors file"),
        (7, "weight_map.fc.weight is 7"),
    ],
)
def test_an_index_names_shards_of_its_own_folder(folder, tmp_path, shard, named):
    (tmp_path / "outside.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": shard}}))
    assert named in refused(folder)


def test_an_index_and_its_shards_must_agree(tmp_path):
    folder = write(tmp_path / "draft", ZLAB_1, shards=2)
    index = json.loads((folder / INDEX).read_text())
    moved = {**index["weight_map"], "fc.weight": "model-00002-of-00002.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": moved}))
    assert "model-00001-of-00002.safetensors holds fc.weight" in refused(folder)
    (folder / INDEX).write_text(
        json.dumps({"weight_map": {**index["weight_map"], "more": "model-00001-of-00002.safetensors"}})
    )
    assert "weight_map.more is not in" in refused(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {}}))
    assert "weight_map" in refused(folder)
    save_file({"a": torch.zeros(1)}, folder / WEIGHTS)
    assert "has both" in refused(folder)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("pytorch_model.bin", "is a pickle, which can run code"),
        ("draft.pt", "is a pickle, which can run code"),
        ("draft.gguf", "GGUF drafts are not understood yet"),
        ("notes.txt", "has neither model.safetensors nor"),
    ],
)
def test_weights_in_other_formats_are_refused_unread(folder, name, named):
    (folder / WEIGHTS).rename(folder / name)
    assert named in refused(folder)


def test_a_mask_embedding_beside_the_weights_is_not_ignored(folder):
    (folder / "mask_embedding.pt").write_bytes(b"")
    assert "mask_embedding.pt: this is a MiMo draft" in refused(folder)


@pytest.mark.parametrize("path", ["nowhere", "someone/DFlash-draft", "nul\0", "x" * 5000, "draft.gguf"])
def test_a_path_that_is_no_folder_is_refused(path):
    with pytest.raises(CheckpointError):
        load_checkpoint(path, DIALECTS)
