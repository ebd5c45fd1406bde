"""A draft and a target that do not fit are found out before they meet, and reports tell the truth."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from checkpoint_samples import (
    BORROWED,
    DIALECTS,
    SPECFORGE_SPARK,
    SPECULATORS_1,
    ZLAB_1,
    ZLAB_2,
    canonical_tensors,
    changed,
    spec_of,
    write,
    write_target,
)

from dflash_core.checkpoint.inspect import inspect_checkpoint
from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.checkpoint.pair import check_pair, pair_findings, same_rope
from dflash_core.checkpoint.targets import ConfigFacts, read_target
from dflash_core.checkpoint.validate import validate_checkpoint
from dflash_core.cli import main
from dflash_core.errors import CheckpointError, PairError
from dflash_core.spec import RopeSpec
from dflash_core.target import TargetInfo

SPEC = spec_of(ZLAB_1)
TARGET = ConfigFacts("some-target", 10, 32, 64, 4096, RopeSpec(1e6))
YARN = RopeSpec(1e6, "yarn", 4.0, 1024)


def test_a_pair_that_fits_passes():
    check_pair(SPEC, TARGET)
    check_pair(SPEC, replace(TARGET, rope=None))
    assert pair_findings(SPEC, TARGET) == []


def test_facts_about_a_loaded_target_will_do():
    info = TargetInfo(
        name="some-target",
        num_layers=10,
        hidden_size=32,
        vocab_size=64,
        max_positions=4096,
        rope=RopeSpec(1e6),
        recurrent=False,
        trees=True,
        eos_token_ids=(2,),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    check_pair(SPEC, info)
    with pytest.raises(PairError):
        check_pair(SPEC, replace(info, hidden_size=64))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 80}, "vocab_size is 64 in the draft and 80 in the target"),
        ({"vocab_size": 60}, "mask_token_id is 63, but the target's tokens are 0 to 59"),
        ({"hidden_size": 48}, "hidden_size is 32 where the draft reads taps and 48 in the target"),
        ({"num_layers": 12}, "num_target_layers is 10, but the target has 12"),
        ({"num_layers": 7}, r"target_layer_ids is \[1, 4, 7\], but the target has 7 layers \(0 to 6\)"),
        ({"num_layers": 7}, "If these are Hugging Face hidden-state indices, subtract 1"),
        ({"rope": RopeSpec(1e4)}, "RoPE is theta 1e.06 in the draft and theta 10000 in the target"),
        ({"rope": YARN}, "RoPE is theta 1e.06 in the draft and theta 1e.06, yarn x 4 from 1024 positions"),
        ({"rope": RopeSpec(1e6, "linear", 2.0)}, "linear x 2"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(change, named):
    with pytest.raises(PairError, match=named) as caught:
        check_pair(SPEC, replace(TARGET, **change))
    assert str(caught.value).startswith("The draft does not fit some-target: ")


def test_a_mismatch_of_rope_alone_can_be_allowed():
    other = replace(TARGET, rope=YARN)
    check_pair(SPEC, other, allow_rope_mismatch=True)
    with pytest.raises(PairError, match="vocab_size"):
        check_pair(SPEC, replace(other, vocab_size=80), allow_rope_mismatch=True)


def test_a_draft_of_another_width_needs_its_own_embedding():
    other = replace(SPEC, target_hidden_size=48)
    with pytest.raises(PairError, match="too different to borrow"):
        check_pair(other, replace(TARGET, hidden_size=48))
    check_pair(replace(other, owns_embedding=True, owns_head=True), replace(TARGET, hidden_size=48))


def test_same_rope_looks_at_what_the_kind_uses():
    assert same_rope(RopeSpec(1e4), RopeSpec(1e4, "linear", 1.0))
    assert same_rope(RopeSpec(1e4, beta_fast=9.0), RopeSpec(1e4))
    assert same_rope(YARN, replace(YARN, mscale=0.0))
    for change in ({"factor": 8.0}, {"beta_slow": 2.0}, {"attention_factor": 1.0}, {"truncate": False}):
        assert not same_rope(YARN, replace(YARN, **change))


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({}, RopeSpec(1e6)),
        ({"rope_theta": None}, None),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, RopeSpec(5e5)),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, None),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, RopeSpec(1e6, "linear", 8.0)),
        ({"partial_rotary_factor": 0.25}, None),
        (
            {
                "rope_theta": None,
                "rope_parameters": {"full_attention": {"rope_theta": 7.0}, "sliding_attention": {}},
            },
            RopeSpec(7.0),
        ),
    ],
)  # fmt: skip
def test_rope_of_a_target_is_read_where_it_is_known(tmp_path, changes, rope):
    assert read_target(write_target(tmp_path / "target", **changes)).rope == rope


def test_the_text_model_of_a_larger_target_counts(tmp_path):
    folder = write_target(tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "some_vl", "text_config": config}))
    assert read_target(folder) == replace(TARGET, name=str(folder))
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"target/config\.json: num_hidden_layers is missing"):
        read_target(folder)


def levels(findings: list) -> list[str]:
    return [finding.level for finding in findings]


def test_a_sound_draft_has_no_findings(tmp_path):
    folder = write(tmp_path / "draft", ZLAB_1)
    assert validate_checkpoint(folder, write_target(tmp_path / "target"), DIALECTS) == []
    assert validate_checkpoint(BORROWED, dialects=DIALECTS) == []


def test_findings_name_what_is_wrong_and_what_is_doubtful(tmp_path):
    config = changed(ZLAB_1, "dflash_config.target_layer_ids", [4, 1, 9])
    config["max_position_embeddings"] = 2048
    tensors = canonical_tensors(spec_of(config), torch.float16)
    folder = write(tmp_path / "draft", config, tensors)
    findings = validate_checkpoint(folder, write_target(tmp_path / "target", rope_theta=5.0), DIALECTS)
    assert levels(findings) == ["error", "warning", "warning", "warning", "warning"]
    text = " ".join(finding.message for finding in findings)
    for word in ("RoPE", "float16", "not in order", "last block", "max_position_embeddings is 2048"):
        assert word in text


def test_what_cannot_be_read_is_a_finding(tmp_path):
    folder = write(tmp_path / "draft", ZLAB_1)
    (finding,) = validate_checkpoint(folder, tmp_path / "nowhere", DIALECTS)
    assert finding.level == "error"
    assert "nowhere" in finding.message
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    (finding,) = validate_checkpoint(folder, dialects=DIALECTS)
    assert "is it truncated?" in finding.message


def test_a_report_counts_what_is_there(tmp_path):
    folder = write(tmp_path / "draft", ZLAB_2)
    checkpoint = load_checkpoint(folder, DIALECTS)
    report = inspect_checkpoint(folder, DIALECTS)
    assert report.total_parameters == sum(tensor.numel() for tensor in checkpoint.tensors.values())
    assert report.bytes == sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    assert report.dtypes == {"bfloat16": len(checkpoint.tensors)}
    assert {one.name: list(one.shape) for one in report.tensors} == {
        name: list(tensor.shape) for name, tensor in checkpoint.tensors.items()
    }
    assert report.parameters["selector"] == 6 * 32 + 2 * 64 * 6
    assert report.parameters["convolutions"] == 2 * 2 * (2 * 2 * 32 + 2 * 2 * 4 * 32)
    assert json.loads(json.dumps(report.to_dict()))["spec"]["conv"] == {"kernel_size": 2, "group_size": 8}


def test_a_report_tells_of_dsparks_heads(tmp_path, capsys):
    folder = write(tmp_path / "draft", SPECFORGE_SPARK)
    parts = inspect_checkpoint(folder, DIALECTS).parameters
    assert (parts["Markov head"], parts["confidence head"]) == (2 * 64 * 6, 32 + 6 + 1)
    code, shown, _ = run(capsys, "inspect", folder)
    assert code == 0
    for told in ("DSpark", "8 slots, the anchor and 7 drafts", "vanilla Markov head of rank 6"):
        assert told in shown
    assert "confidence head" in shown
    target = write_target(tmp_path / "target")
    assert validate_checkpoint(folder, target, DIALECTS) == []


def test_a_report_reads_no_weights(tmp_path):
    folder = write(tmp_path / "draft", SPECULATORS_1)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-64] + b"\xff" * 64)
    assert inspect_checkpoint(folder, DIALECTS).parameters["head"] == 24 * 32
    assert levels(validate_checkpoint(folder, dialects=DIALECTS)) == ["error"]


def run(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return stop.value.code, shown.out, shown.err


def test_inspect_shows_a_draft_to_people_and_programs(capsys, tmp_path):
    folder = write(tmp_path / "draft", ZLAB_2)
    code, out, _ = run(capsys, "inspect", folder)
    assert code == 0
    for word in (
        "DFlash2",
        "2, 5, 8 of 10 blocks",
        "window 16, bidirectional",
        "selector of rank 6",
        "theta 1e+07",
    ):
        assert word in out
    code, out, _ = run(capsys, "inspect", folder, "--json")
    assert code == 0
    assert json.loads(out)["spec"]["taps"] == [2, 5, 8]
    code, _, err = run(capsys, "inspect", tmp_path / "nowhere")
    assert code != 0
    assert "nowhere" in err


def test_validate_ends_with_1_when_there_are_errors(capsys, tmp_path):
    folder, target = write(tmp_path / "draft", ZLAB_1), write_target(tmp_path / "target")
    code, out, _ = run(capsys, "validate", folder, "--target", target)
    assert (code, "nothing wrong" in out) == (0, True)
    other = write_target(tmp_path / "other", num_hidden_layers=7)
    code, out, _ = run(capsys, "validate", folder, "--target", other)
    assert (code, "subtract 1" in out.replace("\n", " ")) == (1, True)
    code, out, _ = run(capsys, "validate", folder, "--target", other, "--json")
    shown = json.loads(out)
    assert (code, shown["ok"], shown["findings"][0]["level"]) == (1, False, "error")


def test_convert_writes_a_folder_and_says_what_it_did(capsys, tmp_path):
    folder, target = write(tmp_path / "draft", ZLAB_1), write_target(tmp_path / "target")
    out_folder = tmp_path / "out"
    code, out, err = run(capsys, "convert", folder, out_folder, "--to", "speculators", "--target", target)
    assert code == 0
    assert f"{out_folder} (zlab to speculators, bfloat16)" in out
    assert "embed_tokens.weight and lm_head.weight taken from" in err
    assert load_checkpoint(out_folder).spec.dialect == "speculators"
    code, _, err = run(capsys, "convert", folder, out_folder, "--to", "zlab")
    assert code != 0
    assert "exists already" in err
    code, _, _ = run(
        capsys, "convert", folder, out_folder, "--to", "zlab", "--overwrite", "--dtype", "float32"
    )
    assert code == 0
    assert load_checkpoint(out_folder).spec.dtype == "float32"


@pytest.mark.parametrize("command", ["inspect", "convert", "validate"])
def test_help_shows_an_example(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"Example: dflash-core {command}" in out


def test_commands_load_torch_only_when_they_run():
    modules = ", ".join(f"dflash_core.cli.{name}" for name in ("inspect", "convert", "validate"))
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
