"""DSpark's keys mean what its own programs mean by them, and what they cannot mean is refused by name."""

import pytest
from checkpoint_samples import SPECFORGE_SPARK, ZLAB_1, ZLAB_MARKOV, ZLAB_SPARK, changed, spec_of

from dflash_core.errors import CheckpointError
from dflash_core.spec import ConfidenceSpec, MarkovSpec


def refused(config: dict) -> str:
    with pytest.raises(CheckpointError) as caught:
        spec_of(config)
    assert str(caught.value).startswith("config.json: ")
    return str(caught.value)


@pytest.mark.parametrize(("config", "dialect"), [(SPECFORGE_SPARK, "specforge"), (ZLAB_SPARK, "zlab")])
def test_a_dspark_block_counts_its_drafts_only_and_its_anchor_predicts(config, dialect):
    spec = spec_of(config)
    assert (spec.dialect, spec.anchor_predicts, spec.head) == (dialect, True, "markov")
    assert spec.markov == MarkovSpec(rank=6, kind="vanilla")
    assert (spec.block_size, spec.network_slots) == (8, 7), "seven inputs, seven drafts, and the anchor"
    assert spec_of(changed(config, "block_size", 1)).block_size == 2
    assert "markov_rank is missing" in refused(changed(config, "dflash_config.markov_rank", ...))
    headless = changed(config, "dflash_config.markov_rank", 0)
    headless = changed(headless, "dflash_config.enable_confidence_head", False)
    assert spec_of(headless).head == "independent"


def test_a_dspark_confidence_head_is_a_linear_layer_described_by_flags():
    known = ConfidenceSpec(hidden_size=None, features=("before",), temperatures=(1.0,) * 7)
    assert spec_of(SPECFORGE_SPARK).confidence == known
    assert (
        spec_of(changed(SPECFORGE_SPARK, "dflash_config.confidence_head_with_markov", ...)).confidence
        == known
    )
    alone = spec_of(changed(SPECFORGE_SPARK, "dflash_config.confidence_head_with_markov", False))
    assert alone.confidence == ConfidenceSpec(None, (), (1.0,) * 7)
    for value in (False, ...):
        assert (
            spec_of(changed(SPECFORGE_SPARK, "dflash_config.enable_confidence_head", value)).confidence
            is None
        )
    temperatures = [1.5] * 7
    described = {"kind": "linear", "features": ["before"], "temperatures": temperatures}
    calibrated = spec_of(changed(SPECFORGE_SPARK, "dflash_config.confidence_head", described))
    assert calibrated.confidence == ConfidenceSpec(None, ("before",), tuple(temperatures))


def test_a_dspark_draft_is_known_by_its_head_where_its_architecture_is_dflashs():
    legacy = {**SPECFORGE_SPARK, "architectures": ["DFlashDraftModel"]}
    assert spec_of(legacy) == spec_of(SPECFORGE_SPARK)
    top = {key: value for key, value in SPECFORGE_SPARK.items() if key != "dflash_config"}
    assert spec_of({**top, **SPECFORGE_SPARK["dflash_config"]}) == spec_of(SPECFORGE_SPARK)
    assert spec_of({**SPECFORGE_SPARK, "model_type": "dspark", "shift_label": True}) == spec_of(
        SPECFORGE_SPARK
    )


def test_a_markov_head_and_an_anchor_that_predicts_can_do_without_each_other():
    head = spec_of(ZLAB_MARKOV)
    assert (head.markov, head.anchor_predicts, head.block_size) == (MarkovSpec(6), False, 8)
    anchor = spec_of(changed(ZLAB_1, "dflash_config.sample_from_anchor", True))
    assert (anchor.markov, anchor.anchor_predicts, anchor.block_size) == (None, True, 9)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("dflash_config.projector_type", "dflash", "projector_type is 'dflash'"),
        ("dflash_config.projector_type", "domino", "a Domino draft of SpecForge"),
        ("dflash_config.markov_head_type", "gated", "markov_head_type is 'gated'"),
        ("dflash_config.markov_head_type", "rnn", "markov_head_type is 'rnn'"),
        ("dflash_config.markov_rank", -1, "markov_rank is -1"),
        ("dflash_config.markov_rank", 0, "confidence_head_with_markov must be false"),
        ("dflash_config.sample_from_anchor", False, "markov_rank is 6, but"),
        ("dflash_config.confidence_head", {"hidden_size": 4}, "another head than enable_confidence_head"),
        ("shift_label", False, "shift_label is false"),
        ("block_size", 0, "block_size is 0"),
    ],
)
def test_what_a_dspark_config_cannot_mean_is_refused_by_name(path, value, named):
    assert named in refused(changed(SPECFORGE_SPARK, path, value))


@pytest.mark.parametrize(
    ("config", "head", "named"),
    [
        (ZLAB_1, {"kind": "linear", "features": ["before"]}, "understood are slot, log_prob, each once"),
        (ZLAB_MARKOV, {"kind": "linear", "hidden_size": 4}, "hidden_size is not understood"),
        (ZLAB_1, {"kind": "rnn"}, "understood are linear, mlp"),
    ],
)
def test_a_confidence_head_that_cannot_be_is_refused_by_name(config, head, named):
    assert named in refused(changed(config, "dflash_config.confidence_head", head))
