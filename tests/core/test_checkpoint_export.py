"""A confidence head and protocol metadata are put into a draft and read back as they are meant."""

import json
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
    changed,
    spec_of,
    tensors_on_disk,
    write,
    write_target,
)
from safetensors.torch import load_file

from dflash_core.checkpoint.confidence import confidence_parameters, confidence_shapes
from dflash_core.checkpoint.convert import convert
from dflash_core.checkpoint.export import (
    Head,
    check_exportable,
    export,
    fitted_on,
    head_of,
    load_head,
    save_head,
    target_parameters,
)
from dflash_core.checkpoint.inspect import inspect_checkpoint
from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.checkpoint.save import save_checkpoint
from dflash_core.checkpoint.validate import validate_checkpoint
from dflash_core.cli import main
from dflash_core.errors import CheckpointError
from dflash_core.spec import ConfidenceSpec, ProtocolSpec

CONFIDENCE = ConfidenceSpec(6, ("slot", "log_prob"), (1.0, 1.25, 0.75, 1.5, 2.0, 1.0, 3.5))


def a_head(spec, confidence=CONFIDENCE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = confidence_shapes(spec, confidence)
    return Head(confidence, {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})


def exported(folder, config=ZLAB_1, **options):
    spec = spec_of(config)
    write(folder / "draft", config)
    options = {"head": a_head(spec), **options}
    return export(folder / "draft", folder / "out", dialects=DIALECTS, **options)


@pytest.mark.parametrize("config", [ZLAB_1, ZLAB_2], ids=["v1", "v2"])
def test_a_head_and_metadata_come_back_as_they_were_put_in(tmp_path, config):
    done = exported(tmp_path, config)
    loaded, before = load_checkpoint(done.path, DIALECTS), load_checkpoint(tmp_path / "draft", DIALECTS)
    assert loaded.spec == replace(before.spec, confidence=CONFIDENCE, protocol=ProtocolSpec("left"))
    head = head_of(loaded)
    own = a_head(before.spec)
    assert head.spec == CONFIDENCE
    assert all(torch.equal(head.tensors[name], own.tensors[name].bfloat16()) for name in own.tensors)
    assert {n: t for n, t in loaded.tensors.items() if n not in head.tensors}.keys() == before.tensors.keys()
    assert all(torch.equal(loaded.tensors[name], before.tensors[name]) for name in before.tensors)
    assert validate_checkpoint(done.path, dialects=DIALECTS) == []


def test_the_config_says_what_others_look_for(tmp_path):
    done = exported(tmp_path)
    config = json.loads((done.path / "config.json").read_text())
    assert config["block_diffusion"] is True
    assert config["padding_side"] == "left"
    assert config["dflash_config"]["confidence_head"] == {
        "hidden_size": 6,
        "activation": "silu",
        "features": ["slot", "log_prob"],
        "temperatures": [1.0, 1.25, 0.75, 1.5, 2.0, 1.0, 3.5],
    }
    names = {name for name in load_file(done.path / "model.safetensors") if "confidence" in name}
    assert names == {
        f"confidence_head.{part}" for part in ("up.weight", "up.bias", "down.weight", "down.bias")
    }


def test_inspect_counts_the_head_apart(tmp_path):
    done = exported(tmp_path)
    report = inspect_checkpoint(done.path, DIALECTS)
    assert report.parameters["confidence head"] == done.head_parameters
    assert done.head_parameters == 6 * (32 + 7 + 1) + 6 + 6 + 1
    assert report.total_parameters == done.head_parameters + done.draft_parameters
    json.dumps(report.to_dict())


def test_metadata_alone_can_be_put_in_and_a_head_survives_another_export(tmp_path):
    done = exported(tmp_path, head=None)
    assert (done.head_parameters, done.spec.confidence) == (0, None)
    assert load_checkpoint(done.path, DIALECTS).spec.protocol == ProtocolSpec("left")
    first = exported(tmp_path / "more")
    again = export(first.path, tmp_path / "again", dialects=DIALECTS)
    assert again.spec.confidence == CONFIDENCE
    other = a_head(first.spec, replace(CONFIDENCE, hidden_size=3, features=()), seed=1)
    last = export(first.path, tmp_path / "last", head=other, dialects=DIALECTS)
    assert head_of(load_checkpoint(last.path, DIALECTS)).spec == other.spec


def test_a_head_can_lie_on_its_own(tmp_path):
    spec = spec_of(ZLAB_1)
    write(tmp_path / "draft", ZLAB_1)
    save_head(a_head(spec), tmp_path / "head")
    assert len({path.stat().st_mode for path in (tmp_path / "head").iterdir()}) == 1
    alone = export(tmp_path / "draft", tmp_path / "a", head=tmp_path / "head", dialects=DIALECTS)
    within = export(tmp_path / "draft", tmp_path / "b", head=tmp_path / "a", dialects=DIALECTS)
    assert alone.spec == within.spec
    with pytest.raises(CheckpointError, match=r"draft has no confidence head: neither head\.json, nor"):
        load_head(tmp_path / "draft", spec, DIALECTS)
    (tmp_path / "head/head.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"head\.json: confidence_head is missing"):
        load_head(tmp_path / "head", spec)
    (tmp_path / "head/head.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"head\.json"):
        load_head(tmp_path / "head", spec)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda head: head.tensors.pop("confidence_head.up.bias"), "lacks confidence_head.up.bias"),
        (lambda head: head.tensors.update(more=torch.zeros(1)), "has an unknown tensor, more"),
        (
            lambda head: head.tensors.update({"confidence_head.down.weight": torch.zeros(1, 7)}),
            r"down\.weight has the shape \[1, 7\]; this draft needs \[1, 6\]",
        ),
        (
            lambda head: head.tensors.update({"confidence_head.up.bias": torch.full((6,), torch.nan)}),
            r"up\.bias holds NaN",
        ),
    ],
)
def test_a_head_that_does_not_fit_its_draft_is_refused_and_nothing_is_written(tmp_path, change, named):
    head = a_head(spec_of(ZLAB_1))
    change(head)
    with pytest.raises(CheckpointError, match=named):
        exported(tmp_path, head=head)
    assert not (tmp_path / "out").exists()


def test_a_head_for_another_block_is_refused(tmp_path):
    spec = replace(spec_of(ZLAB_1), block_size=4)
    head = a_head(spec, replace(CONFIDENCE, temperatures=(1.0,) * 3))
    with pytest.raises(
        CheckpointError, match=r"is for 3 drafted slots, but the draft has 7 \(block_size 8\)"
    ):
        exported(tmp_path, head=head)


def test_a_draft_that_does_not_fit_its_target_is_not_exported(tmp_path):
    target = write_target(tmp_path / "target")
    with pytest.raises(
        CheckpointError, match="does not fit its target, so it is not exported: vocab_size is"
    ):
        exported(tmp_path, {**ZLAB_1, "vocab_size": 80}, target=target)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_is_there_is_overwritten_only_when_asked(tmp_path):
    exported(tmp_path)
    with pytest.raises(CheckpointError, match="exists already"):
        export(tmp_path / "draft", tmp_path / "out", dialects=DIALECTS)
    done = export(tmp_path / "draft", tmp_path / "out", overwrite=True, dialects=DIALECTS)
    assert load_checkpoint(done.path, DIALECTS).spec.confidence is None


def with_section(**changes):
    section = {"hidden_size": 6, "features": [], "temperatures": [1.0] * 7, **changes}
    section = {name: value for name, value in section.items() if value is not ...}
    return changed(ZLAB_1, "dflash_config.confidence_head", section)


def test_temperatures_are_1_where_a_config_names_none():
    assert spec_of(with_section(temperatures=...)).confidence.temperatures == (1.0,) * 7
    assert spec_of(with_section(temperatures=[1] * 7)).confidence.temperatures == (1.0,) * 7
    assert spec_of(with_section(features=...)).confidence.features == ()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (with_section(hidden_size=...), "confidence_head.hidden_size is missing"),
        (with_section(hidden_size=0), "confidence_head.hidden_size is 0"),
        (with_section(features=["mood"]), r"confidence_head.features is ['mood']; understood are slot"),
        (with_section(features=["slot", "slot"]), "confidence_head.features is"),
        (with_section(features="slot"), "confidence_head.features is 'slot'"),
        (with_section(features=0), "confidence_head.features is 0"),
        (with_section(features=[["slot"]]), "confidence_head.features is"),
        (with_section(temperatures=[1.0] * 6), "it must be 7 numbers above 0, one a drafted slot"),
        (with_section(temperatures=[1.0] * 6 + [0.0]), "confidence_head.temperatures is"),
        (with_section(temperatures=[True] * 7), "confidence_head.temperatures is"),
        (with_section(temperatures=7), "confidence_head.temperatures is 7"),
        (with_section(draft_sha256=7), "confidence_head.draft_sha256 is 7; it must be a string"),
        (with_section(activation="gelu"), "confidence_head.activation is 'gelu'"),
        (with_section(hidden_sizes=6), "hidden_sizes is not understood"),
        (changed(ZLAB_1, "dflash_config.confidence_head", 7), "confidence_head is 7; it must be an object"),
        ({**ZLAB_1, "block_diffusion": False}, "block_diffusion is false, but this is"),
        ({**ZLAB_1, "block_diffusion": "yes"}, "block_diffusion is 'yes'; it must be true or false"),
        ({**ZLAB_1, "padding_side": "right"}, "padding_side is 'right'; a block follows"),
        ({**SPECULATORS_1, "padding_side": "right"}, "padding_side is 'right'"),
        ({**SPECULATORS_1, "confidence_head": {"hidden_size": 6}}, "confidence_head is not understood"),
    ],
)
def test_what_a_config_says_wrongly_is_named(config, named):
    with pytest.raises(CheckpointError) as caught:
        spec_of(config)
    assert named in str(caught.value)


@pytest.mark.parametrize("keys", [{"block_diffusion": True}, {"padding_side": "left"}])
def test_either_key_alone_is_the_same_metadata(keys):
    assert spec_of({**ZLAB_1, **keys}).protocol == ProtocolSpec("left")
    assert spec_of({**SPECULATORS_1, **keys}).protocol == ProtocolSpec("left")


def test_tensors_that_the_config_does_not_describe_are_refused_and_those_it_does_must_be_there(tmp_path):
    spec = spec_of(ZLAB_1)
    head = {name: one.bfloat16() for name, one in a_head(spec).tensors.items()}
    write(tmp_path / "a", ZLAB_1, {**tensors_on_disk(ZLAB_1), **head})
    with pytest.raises(CheckpointError, match="of a confidence head that the config does not describe"):
        load_checkpoint(tmp_path / "a", DIALECTS)
    write(tmp_path / "b", with_section(), tensors_on_disk(ZLAB_1))
    with pytest.raises(CheckpointError, match=r"tensor confidence_head\.up\.weight is missing"):
        load_checkpoint(tmp_path / "b", DIALECTS)


def test_other_layouts_keep_the_metadata_and_refuse_the_head(tmp_path):
    target = write_target(tmp_path / "target")
    done = exported(tmp_path)
    with pytest.raises(CheckpointError, match="speculators layout: it has no words for a confidence head"):
        convert(done.path, tmp_path / "b", to="speculators", target=target, dialects=DIALECTS)
    plain = exported(tmp_path / "more", head=None)
    convert(plain.path, tmp_path / "c", to="speculators", target=target, dialects=DIALECTS)
    assert load_checkpoint(tmp_path / "c", DIALECTS).spec.protocol == ProtocolSpec("left")
    convert(done.path, tmp_path / "d", to="specforge", dialects=DIALECTS)
    assert load_checkpoint(tmp_path / "d", DIALECTS).spec.confidence == CONFIDENCE


def test_zlabs_own_package_still_loads_the_draft(tmp_path):
    model = pytest.importorskip("dflash.model")
    done = exported(tmp_path)
    theirs = model.DFlashDraftModel.from_pretrained(done.path, dtype=torch.bfloat16).state_dict()
    first = load_checkpoint(tmp_path / "draft", DIALECTS)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in first.tensors.items())


def test_a_head_that_was_fitted_on_another_draft_is_doubted(tmp_path):
    write(tmp_path / "draft", ZLAB_1)
    draft = load_checkpoint(tmp_path / "draft", DIALECTS)
    other = {name: one * 2 if name == "fc.weight" else one for name, one in draft.tensors.items()}
    save_checkpoint(replace(draft, tensors=other), tmp_path / "other", dialect="zlab", dialects=DIALECTS)
    save_head(fitted_on(a_head(draft.spec), draft), tmp_path / "head")
    options = {"head": tmp_path / "head", "dialects": DIALECTS}
    own = export(tmp_path / "draft", tmp_path / "a", **options)
    wide = export(tmp_path / "draft", tmp_path / "b", dtype="float32", **options)
    for right in (own, wide, export(own.path, tmp_path / "c", dialects=DIALECTS)):
        assert right.findings == ()
        assert len(load_checkpoint(right.path, DIALECTS).spec.confidence.draft_sha256) == 64
    wrong = export(tmp_path / "other", tmp_path / "d", **options)
    (finding,) = wrong.findings
    assert finding.level == "warning"
    assert "was fitted on a draft with other weights (draft_sha256)" in finding.message
    assert validate_checkpoint(wrong.path, dialects=DIALECTS) == [finding]
    save_head(a_head(draft.spec), tmp_path / "head")
    assert "draft_sha256" not in (tmp_path / "head/head.json").read_text()
    assert export(tmp_path / "other", tmp_path / "e", **options).findings == ()


def test_a_linear_head_keeps_what_it_was_fitted_on(tmp_path):
    draft = load_checkpoint(write(tmp_path / "draft", SPECFORGE_SPARK), DIALECTS)
    done = export(draft, tmp_path / "out", head=fitted_on(head_of(draft), draft), dialects=DIALECTS)
    assert load_checkpoint(done.path, DIALECTS).spec.confidence.draft_sha256 is not None
    assert done.findings == ()


CARD = b"# A draft\r\n\nSaid in latin-1: \xe9\r\n"


def test_the_model_card_goes_where_the_draft_goes(tmp_path):
    write(tmp_path / "draft", ZLAB_1)
    (tmp_path / "draft/README.md").write_bytes(CARD)
    done = export(tmp_path / "draft", tmp_path / "out", dialects=DIALECTS)
    assert (done.path / "README.md").read_bytes() == CARD
    export(done.path, done.path, overwrite=True, dialects=DIALECTS)
    assert (done.path / "README.md").read_bytes() == CARD
    converted = convert(done.path, tmp_path / "other", to="specforge", dialects=DIALECTS)
    assert (converted.path / "README.md").read_bytes() == CARD
    (tmp_path / "draft/README.md").unlink()
    assert not (export(tmp_path / "draft", tmp_path / "bare", dialects=DIALECTS).path / "README.md").exists()


def test_what_a_card_says_of_a_head_is_of_the_one_that_is_there(tmp_path):
    write(tmp_path / "draft", ZLAB_1)
    (tmp_path / "draft/README.md").write_bytes(CARD)
    head = a_head(spec_of(ZLAB_1))
    options = {"head": head, "overwrite": True, "dialects": DIALECTS}

    def card(source, **more):
        return (export(source, tmp_path / "out", **options, **more).path / "README.md").read_bytes()

    first = card(tmp_path / "draft", about_head="An error of 1 %.")
    assert first == CARD.rstrip() + b"\n\n## Confidence head\n\nAn error of 1 %.\n"
    assert card(tmp_path / "out", about_head="Of 2 %.") == first.replace(b"An error of 1 %.", b"Of 2 %.")
    assert card(tmp_path / "out") == CARD.rstrip() + b"\n\n"
    (tmp_path / "draft/README.md").unlink()
    assert card(tmp_path / "draft", about_head="1 %") == b"## Confidence head\n\n1 %\n"


def test_a_card_that_is_no_file_of_the_draft_is_refused_before_anything_is_written(tmp_path):
    write(tmp_path / "draft", ZLAB_1)
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "draft/README.md").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match=r"README\.md is a link to a place outside"):
        export(tmp_path / "draft", tmp_path / "out", dialects=DIALECTS)
    with pytest.raises(CheckpointError, match=r"README\.md is a link to a place outside"):
        check_exportable(load_checkpoint(tmp_path / "draft", DIALECTS), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(one) for one in arguments])
    return stop.value.code or 0


def test_the_command_exports_validates_and_warns_of_a_large_head(tmp_path, capsys):
    target = write_target(tmp_path / "target")
    write(tmp_path / "draft", ZLAB_1)
    save_head(a_head(spec_of(ZLAB_1)), tmp_path / "head")
    arguments = ["export", tmp_path / "draft", tmp_path / "out", "--confidence-head", tmp_path / "head"]
    assert run(*arguments, "--target", target, "--json") == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["head_parameters"] == confidence_parameters(spec_of(ZLAB_1), CONFIDENCE)
    assert report["share"] == report["head_parameters"] / (
        report["draft_parameters"] + target_parameters(target)
    )
    assert "more than 0.1% is seldom worth its time" in err
    assert run("inspect", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert "confidence head of width 6 (hidden state, slot, log_prob)" in out
    assert "block_diffusion, prompts padded on the left" in out
    assert run(*arguments) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_borrowed_draft_can_be_exported(tmp_path):
    done = export(BORROWED, tmp_path / "out", dialects=DIALECTS)
    assert done.draft_parameters == 12_280_704
    assert not done.findings
