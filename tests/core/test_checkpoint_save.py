"""A draft survives being written and converted, and a folder appears whole or not at all."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from checkpoint_samples import (
    BORROWED,
    CONFIGS,
    DIALECTS,
    SPECFORGE_SPARK,
    SPECULATORS_1,
    ZLAB_1,
    ZLAB_2,
    ZLAB_MARKOV,
    ZLAB_SPARK,
    canonical_tensors,
    changed,
    spec_of,
    tensors_on_disk,
    write,
    write_target,
)
from safetensors.torch import load_file

from dflash_core.checkpoint.base import DraftCheckpoint
from dflash_core.checkpoint.convert import convert
from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.checkpoint.save import differences, save_checkpoint
from dflash_core.errors import CheckpointError
from dflash_core.spec import ConfidenceSpec, ConvSpec, LayerSpec, MarkovSpec, RopeSpec, SelectorSpec

LINEAR, WARM = ConfidenceSpec(None, ("before",), (1.0,) * 7), (1.0, 1.5, *(2.0,) * 5)
SECOND = {"conv": ConvSpec(2, 8), "selector": SelectorSpec(6, 4)}
FULL_SPECULATORS = {**SPECULATORS_1, "draft_vocab_size": 64}


def same(left: DraftCheckpoint, right: DraftCheckpoint) -> bool:
    return left.tensors.keys() == right.tensors.keys() and all(
        left.tensors[name].dtype == right.tensors[name].dtype
        and torch.equal(left.tensors[name], right.tensors[name])
        for name in left.tensors
    )


@pytest.mark.parametrize("shard_bytes", [1 << 30, 3000])
@pytest.mark.parametrize("name", CONFIGS)
def test_writing_a_draft_in_its_own_layout_loses_nothing(tmp_path, name, shard_bytes):
    first = load_checkpoint(write(tmp_path / "first", CONFIGS[name]), DIALECTS)
    folder = save_checkpoint(
        first, tmp_path / "second", dialect=first.spec.dialect, shard_bytes=shard_bytes, dialects=DIALECTS
    )
    second = load_checkpoint(folder, DIALECTS)
    assert second.spec == first.spec
    assert same(first, second)
    assert (folder / "model.safetensors").exists() == (shard_bytes == 1 << 30)


@pytest.mark.parametrize("shard_bytes", [1 << 30, 3000])
@pytest.mark.parametrize(("mask", "file", "folder"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)])
def test_files_are_for_whom_the_umask_allows(tmp_path, mask, file, folder, shard_bytes):
    draft = load_checkpoint(write(tmp_path / "first", ZLAB_1), DIALECTS)
    before = os.umask(mask)
    try:
        out = save_checkpoint(
            draft, tmp_path / "out", dialect="zlab", shard_bytes=shard_bytes, dialects=DIALECTS
        )
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == folder
    assert {path.name: path.stat().st_mode & 0o777 for path in out.iterdir()} == dict.fromkeys(
        os.listdir(out), file
    )


@pytest.mark.parametrize("config", [ZLAB_1, ZLAB_2], ids=["v1", "v2"])
@pytest.mark.parametrize("named", [True, False], ids=["compared", "trusted"])
def test_zlab_to_speculators_and_back_is_the_same_draft(tmp_path, config, named):
    target = write_target(tmp_path / "target")
    write(tmp_path / "a", config)
    there = convert(tmp_path / "a", tmp_path / "b", to="speculators", target=target, dialects=DIALECTS)
    back = convert(
        tmp_path / "b", tmp_path / "c", to="zlab", target=target if named else None, dialects=DIALECTS
    )
    first, middle, last = (load_checkpoint(tmp_path / name, DIALECTS) for name in "abc")
    assert (middle.spec.owns_embedding, middle.spec.owns_head) == (True, True)
    assert last.spec == first.spec
    assert same(first, last)
    assert "taken from" in there.notes[0]
    assert ("equal to" if named else "not compared") in back.notes[0]


def test_the_tensors_taken_are_the_targets(tmp_path):
    target = write_target(tmp_path / "target")
    tied = write_target(tmp_path / "tied", tied=True)
    write(tmp_path / "draft", ZLAB_1)
    convert(tmp_path / "draft", tmp_path / "b", to="speculators", target=target, dialects=DIALECTS)
    written, theirs = load_file(tmp_path / "b/model.safetensors"), load_file(target / "model.safetensors")
    assert torch.equal(written["embed_tokens.weight"], theirs["model.embed_tokens.weight"].bfloat16())
    assert torch.equal(written["lm_head.weight"], theirs["lm_head.weight"].bfloat16())
    convert(tmp_path / "draft", tmp_path / "c", to="speculators", target=tied, dialects=DIALECTS)
    written = load_file(tmp_path / "c/model.safetensors")
    assert torch.equal(written["embed_tokens.weight"], written["lm_head.weight"])


def test_zlab_and_specforge_hold_the_same_draft(tmp_path):
    write(tmp_path / "a", ZLAB_2)
    convert(tmp_path / "a", tmp_path / "b", to="specforge", dialects=DIALECTS)
    convert(tmp_path / "b", tmp_path / "c", to="zlab", dialects=DIALECTS)
    first, middle, last = (load_checkpoint(tmp_path / name, DIALECTS) for name in "abc")
    assert middle.spec == replace(first.spec, dialect="specforge")
    assert last.spec == first.spec
    assert same(first, last)


@pytest.mark.parametrize("config", [SPECFORGE_SPARK, ZLAB_SPARK], ids=["specforge", "zlab"])
def test_a_dspark_draft_is_the_same_in_both_layouts(tmp_path, config):
    write(tmp_path / "a", config)
    convert(tmp_path / "a", tmp_path / "b", to="zlab", dialects=DIALECTS)
    convert(tmp_path / "b", tmp_path / "c", to="specforge", dialects=DIALECTS)
    first, middle, last = (load_checkpoint(tmp_path / name, DIALECTS) for name in "abc")
    assert differences(first.spec, middle.spec) == differences(first.spec, last.spec) == []
    assert [middle.spec.dialect, last.spec.dialect] == ["zlab", "specforge"]
    assert same(first, middle)
    assert same(first, last)
    written = json.loads((tmp_path / "c/config.json").read_text())
    assert written["architectures"] == ["DSparkDraftModel"]
    assert (written["block_size"], written["dflash_config"]["projector_type"]) == (7, "dspark")
    flagged = first.spec.confidence is not None
    assert written["dflash_config"]["enable_confidence_head"] == flagged
    assert "confidence_head" not in written["dflash_config"]


def test_a_markov_head_alone_stays_in_a_layout_that_has_words_for_it(tmp_path):
    write(tmp_path / "draft", ZLAB_MARKOV)
    with pytest.raises(CheckpointError, match="no words for a Markov head without an anchor slot"):
        convert(tmp_path / "draft", tmp_path / "out", to="specforge", dialects=DIALECTS)
    target = write_target(tmp_path / "target")
    with pytest.raises(CheckpointError, match="speculators layout cannot express markov of"):
        convert(tmp_path / "draft", tmp_path / "out", to="speculators", target=target, dialects=DIALECTS)


def test_an_embedding_must_come_from_somewhere(tmp_path):
    write(tmp_path / "draft", ZLAB_1)
    with pytest.raises(
        CheckpointError, match=r"borrows embed_tokens\.weight and lm_head\.weight from its target"
    ):
        convert(tmp_path / "draft", tmp_path / "out", to="speculators", dialects=DIALECTS)
    narrow = write_target(tmp_path / "target")
    write(tmp_path / "other", {**ZLAB_1, "vocab_size": 80})
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is F32 \[64, 32\]; the draft needs"):
        convert(tmp_path / "other", tmp_path / "out", to="speculators", target=narrow, dialects=DIALECTS)
    assert not (tmp_path / "out").exists()


def test_what_a_layout_cannot_hold_is_not_left_out(tmp_path):
    target = write_target(tmp_path / "target")
    write(tmp_path / "reduced", SPECULATORS_1)
    with pytest.raises(CheckpointError, match="head of its own for 24 tokens"):
        convert(tmp_path / "reduced", tmp_path / "out", to="zlab", dialects=DIALECTS)
    write(tmp_path / "trained", FULL_SPECULATORS)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight differs from the target's"):
        convert(tmp_path / "trained", tmp_path / "out", to="zlab", target=target, dialects=DIALECTS)
    sinks = changed(ZLAB_1, "dflash_config.attention_sink_bias", True)
    write(tmp_path / "sinks", sinks)
    with pytest.raises(CheckpointError, match="speculators layout: it has no words for attention sinks"):
        convert(tmp_path / "sinks", tmp_path / "out", to="speculators", target=target, dialects=DIALECTS)
    causal = {**ZLAB_1, "is_causal": True}
    write(tmp_path / "causal", causal)
    with pytest.raises(CheckpointError, match="full layers are bidirectional there"):
        convert(tmp_path / "causal", tmp_path / "out", to="speculators", target=target, dialects=DIALECTS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layers": (LayerSpec(4, True), LayerSpec(8, True))}, r"windows of \[4, 8\]"),
        ({"layers": (LayerSpec(4, True), LayerSpec(4, False))}, "differ in causality"),
        ({**SECOND, "anchor_predicts": True}, "cannot express .*anchor_predicts"),
        ({**SECOND, "markov": MarkovSpec(6)}, "cannot express markov"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"block_size": 4096}, "block_size"),
    ],
)
def test_a_spec_that_reads_back_differently_is_not_written(tmp_path, changes, named):
    spec = replace(spec_of(ZLAB_1), **changes)
    checkpoint = DraftCheckpoint(spec, canonical_tensors(spec))
    with pytest.raises(CheckpointError, match=named):
        save_checkpoint(checkpoint, tmp_path / "out", dialect="zlab", dialects=DIALECTS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        {"rope": RopeSpec(5e4, "yarn", 64.0, 4096, 1.5, 16.0, 2.0, 1.0, 0.5, False)},
        {"rope": RopeSpec(1e4, "linear", 3.0)},
        {"layers": (LayerSpec(None, True), LayerSpec(None, True))},
        {"layers": (LayerSpec(7, False), LayerSpec(None, False))},
        {"layers": (LayerSpec(7, True), LayerSpec(None, False))},
        {"layers": (LayerSpec(7, True), LayerSpec(7, True))},
        {"attention_bias": True, "attention_sinks": True, "attention_value_scale": 0.707},
        {"input_embedding_scale": 24.0, "output_multiplier": 0.5, "final_logit_softcapping": 30.0},
        {"taps": (7, 1), "num_target_layers": None, "rms_norm_eps": 1e-5},
        {"layers": (LayerSpec(None, False),) * 5, "taps": (3,)},
        {"anchor_predicts": True, "markov": MarkovSpec(5)},
        {"anchor_predicts": True, "block_size": 2},
        {"anchor_predicts": True, "markov": MarkovSpec(5), "confidence": LINEAR},
        {"anchor_predicts": True, "markov": MarkovSpec(5), "confidence": replace(LINEAR, temperatures=WARM)},
        {"anchor_predicts": True, "confidence": replace(LINEAR, features=("slot",))},
        {"anchor_predicts": True, "markov": MarkovSpec(5), "confidence": replace(LINEAR, hidden_size=4)},
        {"confidence": replace(LINEAR, features=("log_prob",))},
    ],
)
@pytest.mark.parametrize("dialect", ["zlab", "specforge"])
def test_every_part_of_a_spec_survives_the_file(tmp_path, dialect, changes):
    spec = replace(spec_of(ZLAB_1), dialect=dialect, **changes)
    checkpoint = DraftCheckpoint(spec, canonical_tensors(spec))
    loaded = load_checkpoint(
        save_checkpoint(checkpoint, tmp_path / "out", dialect=dialect, dialects=DIALECTS), DIALECTS
    )
    assert loaded.spec == spec
    assert same(checkpoint, loaded)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_written_in_the_dtype_asked_for(tmp_path, dtype):
    write(tmp_path / "draft", SPECULATORS_1)
    done = convert(tmp_path / "draft", tmp_path / "out", to="speculators", dtype=dtype, dialects=DIALECTS)
    loaded = load_checkpoint(tmp_path / "out", DIALECTS)
    kind = getattr(torch, dtype)
    source = load_checkpoint(tmp_path / "draft", DIALECTS)
    assert (done.dtype, loaded.spec.dtype) == (dtype, dtype)
    assert loaded.tensors["d2t"].dtype == torch.int64
    assert torch.equal(loaded.tensors["fc.weight"], source.tensors["fc.weight"].to(kind))


def test_a_dtype_that_cannot_hold_the_weights_is_refused(tmp_path):
    tensors = tensors_on_disk(ZLAB_1)
    tensors["fc.weight"][0, 0] = 1e30
    write(tmp_path / "draft", ZLAB_1, tensors)
    with pytest.raises(CheckpointError, match=r"fc\.weight holds NaN or infinity"):
        convert(tmp_path / "draft", tmp_path / "out", to="zlab", dtype="float16", dialects=DIALECTS)
    with pytest.raises(CheckpointError, match="dtype is 'int8'"):
        convert(tmp_path / "draft", tmp_path / "out", to="zlab", dtype="int8", dialects=DIALECTS)
    with pytest.raises(CheckpointError, match=r"There is no dialect 'z-lab'\. Did you mean zlab"):
        convert(tmp_path / "draft", tmp_path / "out", to="z-lab", dialects=DIALECTS)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda one: one.pop("fc.weight"), "tensor fc.weight is missing"),
        (lambda one: one.update(more=torch.zeros(1)), "tensor more is not one"),
        (lambda one: one.update({"fc.weight": torch.zeros(2)}), "fc.weight has the shape"),
        (lambda one: one.update({"fc.weight": one["fc.weight"].double()}), "has the dtype float64"),
    ],
)
def test_tensors_that_do_not_fit_their_spec_are_not_written(tmp_path, change, named):
    spec = spec_of(ZLAB_1)
    tensors = canonical_tensors(spec)
    change(tensors)
    with pytest.raises(CheckpointError, match=named):
        save_checkpoint(DraftCheckpoint(spec, tensors), tmp_path / "out", dialect="zlab", dialects=DIALECTS)


def test_nothing_is_overwritten_unasked(tmp_path):
    write(tmp_path / "draft", ZLAB_1)
    write(tmp_path / "out", ZLAB_2)
    with pytest.raises(CheckpointError, match="exists already"):
        convert(tmp_path / "draft", tmp_path / "out", to="zlab", dialects=DIALECTS)
    convert(tmp_path / "draft", tmp_path / "out", to="zlab", overwrite=True, dialects=DIALECTS)
    assert load_checkpoint(tmp_path / "out", DIALECTS).spec == spec_of(ZLAB_1)
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary/page").write_text("precious")
    with pytest.raises(CheckpointError, match="is not a checkpoint folder, so it is not overwritten"):
        convert(tmp_path / "draft", tmp_path / "diary", to="zlab", overwrite=True, dialects=DIALECTS)
    assert sorted(os.listdir(tmp_path)) == ["diary", "draft", "out"]


FULL_DISK = """
import resource, sys
from dflash_core.checkpoint.convert import convert
from dflash_core.checkpoint.zlab import DIALECT
from dflash_core.errors import CheckpointError
source, *destinations = sys.argv[1:]
for limit in (10_000, 100):  # full while the weights are written, and already at the config
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for destination in destinations:
        try:
            convert(source, destination, to="zlab", overwrite=True, dialects={"zlab": DIALECT})
        except CheckpointError as error:
            print(error)
"""


def test_a_full_disk_ends_in_a_sentence_and_leaves_nothing_half_written(tmp_path):
    write(tmp_path / "draft", ZLAB_1)
    write(tmp_path / "old", ZLAB_2)
    command = [sys.executable, "-c", FULL_DISK, *(tmp_path / name for name in ("draft", "new", "old"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sentences = done.stdout.splitlines()
    assert len(sentences) == 4
    assert all(" cannot be written (" in one and "Nothing was left behind." in one for one in sentences)
    assert sorted(os.listdir(tmp_path)) == ["draft", "old"]
    assert load_checkpoint(tmp_path / "old", DIALECTS).spec.conv is not None


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    write(tmp_path / "draft", ZLAB_1)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        convert(tmp_path / "draft", tmp_path / "file/out", to="zlab", dialects=DIALECTS)


@pytest.mark.parametrize("name", ["zlab", "zlab2"])
def test_zlabs_own_package_loads_what_we_write(tmp_path, name):
    model = pytest.importorskip("dflash.model")
    first = load_checkpoint(write(tmp_path / "first", CONFIGS[name]), DIALECTS)
    save_checkpoint(first, tmp_path / "out", dialect="zlab", dialects=DIALECTS)
    kind = model.DFlashDraftModel if name == "zlab" else model.DFlash2DraftModel
    theirs = kind.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    weights = {key.removesuffix(".weight"): value for key, value in theirs.state_dict().items()}
    assert weights.keys() == {key.removesuffix(".weight") for key in first.tensors}
    assert all(torch.equal(weights[key.removesuffix(".weight")], first.tensors[key]) for key in first.tensors)
    assert tuple(theirs.target_layer_ids) == first.spec.taps
    assert (theirs.block_size, theirs.mask_token_id) == (first.spec.block_size, first.spec.mask_token_id)
    if name == "zlab":
        theirs.save_pretrained(tmp_path / "theirs")
        assert not differences(load_checkpoint(tmp_path / "theirs", DIALECTS).spec, first.spec)


def test_the_borrowed_draft_survives_another_layout(tmp_path):
    first = load_checkpoint(BORROWED, DIALECTS)
    folder = save_checkpoint(first, tmp_path / "out", dialect="speculators", dialects=DIALECTS)
    assert same(first, load_checkpoint(folder, DIALECTS))
