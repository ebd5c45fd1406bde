"""What each layout says is read as it is meant, or refused by name."""

import pytest
from checkpoint_samples import (
    BORROWED,
    CONFIGS,
    DIALECTS,
    SPECFORGE_1,
    SPECULATORS_1,
    ZLAB_1,
    ZLAB_2,
    ZLAB_SPARK,
    changed,
    spec_of,
    write,
)

from dflash_core.checkpoint.load import load_checkpoint, read_spec
from dflash_core.errors import CheckpointError
from dflash_core.spec import ConvSpec, LayerSpec, RopeSpec, SelectorSpec

FULL = LayerSpec(None, False)


def refused(config: dict) -> str:
    with pytest.raises(CheckpointError) as caught:
        spec_of(config)
    assert str(caught.value).startswith("config.json: ")
    return str(caught.value)


def test_zlab_v1_is_read_as_its_authors_mean_it():
    spec = spec_of(ZLAB_1)
    assert (spec.dialect, spec.hidden_size, spec.intermediate_size, spec.num_layers) == ("zlab", 32, 48, 2)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 8)
    assert (spec.taps, spec.block_size, spec.mask_token_id, spec.num_target_layers) == ((1, 4, 7), 8, 63, 10)
    assert spec.layers == (FULL, FULL)
    assert spec.rope == RopeSpec(theta=1e6)
    assert spec.conv is None
    assert spec.head == "independent"
    assert (spec.owns_embedding, spec.owns_head) == (False, False)
    assert spec.extra["eos_token_id"] == 2


def test_zlab_v2_is_read_as_its_authors_mean_it():
    spec = spec_of(ZLAB_2)
    assert (spec.conv, spec.selector, spec.head) == (ConvSpec(2, 8), SelectorSpec(6, 4), "selector")
    assert spec.layers == (LayerSpec(16, False),) * 2
    assert (spec.output_multiplier, spec.final_logit_softcapping) == (0.19611613513818404, 20.0)
    assert spec.rope == RopeSpec(theta=1e7)
    assert spec.block_size == 8


def test_speculators_counts_layers_from_one_and_may_reduce_the_vocabulary():
    spec = spec_of(SPECULATORS_1)
    assert spec.taps == (1, 4, 7)
    assert spec.layers == (LayerSpec(16, True), FULL)
    assert (spec.draft_vocab_size, spec.vocab_size) == (24, 64)
    assert spec.target_name == "someone/some-target"


def test_specforge_differs_from_zlab_in_its_marks_only():
    spec = spec_of(SPECFORGE_1)
    assert spec.dialect == "specforge"
    assert (spec.block_size, spec.taps) == (8, (1, 4, 7))


def test_the_borrowed_draft_loads():
    checkpoint = load_checkpoint(BORROWED, DIALECTS)
    spec = checkpoint.spec
    assert (spec.taps, spec.block_size, spec.mask_token_id) == ((1, 7, 14, 20, 26), 8, 5)
    assert sum(tensor.numel() for tensor in checkpoint.tensors.values()) == 12_280_704
    assert read_spec(BORROWED, DIALECTS) == spec


def test_the_installed_dialects_are_these(tmp_path):
    assert read_spec(write(tmp_path / "draft", SPECULATORS_1)).dialect == "speculators"


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_is_claimed_by_one_dialect(name):
    assert [one.name for one in DIALECTS.values() if one.matches(CONFIGS[name])] == [
        name.split("-")[0].removesuffix("2")
    ]


def test_a_key_may_stand_in_dflash_config_or_beside_it():
    flat = changed(ZLAB_1, "dflash_config", ...)
    flat |= ZLAB_1["dflash_config"]
    assert spec_of(flat) == spec_of(ZLAB_1)
    nested = changed(ZLAB_1, "block_size", ...)
    assert spec_of(changed(nested, "dflash_config.block_size", 4)).block_size == 4
    both = changed(ZLAB_1, "dflash_config.block_size", 4)
    assert "dflash_config.block_size is 4, but block_size is 8" in refused(both)


def test_taps_have_a_default_when_the_target_is_known():
    config = changed(changed(ZLAB_1, "dflash_config.target_layer_ids", ...), "num_target_layers", 36)
    assert spec_of(config).taps == (1, 33)
    five = changed(changed(config, "num_hidden_layers", 5), "layer_types", ["full_attention"] * 5)
    assert spec_of(five).taps == (1, 9, 17, 25, 33)
    one = changed(changed(config, "num_hidden_layers", 1), "layer_types", ["full_attention"])
    assert spec_of(one).taps == (18,)
    assert "target_layer_ids" in refused(changed(config, "num_target_layers", ...))
    assert "target_layer_ids" in refused(changed(config, "num_target_layers", 3))


def test_a_tap_out_of_range_suggests_the_usual_cause():
    message = refused(changed(ZLAB_1, "dflash_config.target_layer_ids", [1, 4, 10]))
    assert "dflash_config.target_layer_ids is [1, 4, 10], but the target has 10 layers (0 to 9)" in message
    assert "subtract 1" in message


SLIDING = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "use_sliding_window": True,
}


@pytest.mark.parametrize(
    ("keys", "section", "layers"),
    [
        (SLIDING, {}, (LayerSpec(16, True), FULL)),
        ({**SLIDING, "is_causal": False}, {}, (LayerSpec(16, False), FULL)),
        ({**SLIDING, "is_causal": True}, {}, (LayerSpec(16, True), LayerSpec(None, True))),
        (SLIDING, {"causal": False}, (LayerSpec(16, False), FULL)),
        ({**SLIDING, "is_causal": True}, {"causal": False}, (LayerSpec(16, True), LayerSpec(None, True))),
        ({}, {"use_swa": True, "swa_window_size": 12}, (LayerSpec(12, False),) * 2),
        ({}, {"use_swa": False, "swa_window_size": 12}, (FULL, FULL)),
        (
            {**SLIDING, "use_sliding_window": False},
            {"use_swa": True, "swa_window_size": 12},
            (LayerSpec(12, True), FULL),
        ),
        (
            {"layer_types": None, "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 9},
            {},
            (FULL, LayerSpec(9, True)),
        ),
        ({"layer_types": None, "sliding_window": 4096}, {}, (FULL, FULL)),
    ],
)
def test_windows_and_causality_follow_the_published_rule(keys, section, layers):
    config = {**ZLAB_1, **keys, "dflash_config": {**ZLAB_1["dflash_config"], **section}}
    assert spec_of(config).layers == layers


@pytest.mark.parametrize(
    ("keys", "section", "named"),
    [
        ({**SLIDING, "use_sliding_window": False}, {}, "layer_types"),
        ({**SLIDING, "sliding_window": None}, {}, "sliding_window"),
        ({**SLIDING, "layer_types": ["full_attention"]}, {}, "layer_types"),
        ({**SLIDING, "layer_types": ["full_attention", "chunked_attention"]}, {}, "chunked_attention"),
        (
            {"layer_types": None, "use_sliding_window": True, "max_window_layers": None},
            {},
            "use_sliding_window",
        ),
        (SLIDING, {"swa_window_size": 12}, "dflash_config.swa_window_size is 12, but sliding_window is 16"),
        ({}, {"swa_window_size": 12}, "use_swa"),
    ],
)
def test_windows_that_contradict_themselves_are_refused(keys, section, named):
    config = {**ZLAB_1, **keys, "dflash_config": {**ZLAB_1["dflash_config"], **section}}
    assert named in refused(config)


def test_speculators_causality_is_about_sliding_layers_only():
    loose = spec_of(changed(SPECULATORS_1, "sliding_window_non_causal", True))
    assert loose.layers == (LayerSpec(16, False), FULL)
    plain = changed(SPECULATORS_1, "sliding_window_non_causal", ...)
    assert spec_of(plain).layers == (LayerSpec(16, True), FULL)


YARN = {
    "rope_type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, RopeSpec(1e6, "linear", 4.0)),
        ({"rope_scaling": {"rope_type": "default"}}, RopeSpec(1e6)),
        (
            {"rope_scaling": {**YARN, "type": "yarn"}},
            RopeSpec(1e6, "yarn", 64.0, 4096, mscale=1.0, mscale_all_dim=1.0),
        ),
        (
            {"rope_theta": None, "rope_parameters": {**YARN, "rope_theta": 5e4, "truncate": False}},
            RopeSpec(5e4, "yarn", 64.0, 4096, mscale=1.0, mscale_all_dim=1.0, truncate=False),
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2, "attention_factor": 1.25}},
            RopeSpec(1e6, "yarn", 2.0, 4096, attention_factor=1.25),
        ),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 4.0},
                "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "linear", "factor": 4},
            },
            RopeSpec(1e6, "linear", 4.0),
        ),
    ],
)
def test_rope_is_read_in_the_old_and_the_new_spelling(keys, rope):
    assert spec_of({**ZLAB_1, **keys}).rope == rope


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.rope_type is 'llama3'"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {**YARN, "beta_fast": 0.5}}, "rope_scaling.beta_fast"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}}, "rope_scaling.mrope_section"),
        ({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}, "rope_theta"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_parameters and rope_scaling contradict",
        ),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor is 0.25"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}, "full_attention"),
    ],
)
def test_rope_that_is_not_understood_is_refused_by_name(keys, named):
    assert named in refused({**ZLAB_1, **keys})


@pytest.mark.parametrize(
    ("config", "path", "value", "named"),
    [
        (ZLAB_1, "dflash_config.target_layer_id", [1], "Did you mean target_layer_ids"),
        (ZLAB_1, "num_attention_head", 4, "Did you mean num_attention_heads"),
        (ZLAB_1, "dflash_config.conv_kernel_size", 2, "dflash_config.conv_kernel_size is not understood"),
        (ZLAB_1, "architectures", ["DFlashDraftModel", "DFlash2DraftModel"], None),
        (ZLAB_1, "model_type", "llama", "model_type is 'llama'"),
        (ZLAB_1, "hidden_act", "gelu", "hidden_act"),
        (ZLAB_1, "quantization_config", {"quant_method": "fp8"}, "quantised weights"),
        (ZLAB_1, "mlp_bias", True, "mlp_bias"),
        (ZLAB_1, "logit_scale", 0.5, "logit_scale"),
        (ZLAB_1, "is_neox_style", False, "interleaved"),
        (ZLAB_1, "dflash_config.sample_from_anchor", 1, "sample_from_anchor is 1"),
        (ZLAB_1, "dflash_config.shift_label", True, "by other keys this draft's anchor slot does not"),
        (ZLAB_2, "dflash_config.sample_from_anchor", True, "an anchor slot that predicts too"),
        (ZLAB_2, "dflash_config.markov_rank", 6, "dflash_config.markov_rank is not understood"),
        (ZLAB_1, "dflash_config.use_aux_hidden_state", False, "use_aux_hidden_state"),
        (ZLAB_1, "dflash_config", [1], "dflash_config is [1]"),
        (ZLAB_1, "dflash_config.mask_token_id", 64, "0 to 63"),
        (ZLAB_1, "dflash_config.mask_token_id", None, "mask_token_id is missing"),
        (ZLAB_1, "dflash_config.target_layer_ids", [1, 4, 4], "twice"),
        (ZLAB_1, "dflash_config.target_layer_ids", [], "target_layer_ids"),
        (ZLAB_1, "dflash_config.target_layer_ids", [1, True], "list of integers"),
        (ZLAB_1, "eagle_aux_hidden_state_layer_ids", [1, 4, 7], "eagle_aux_hidden_state_layer_ids"),
        (ZLAB_1, "num_key_value_heads", 3, "does not divide"),
        (ZLAB_1, "head_dim", 7, "even"),
        (ZLAB_1, "head_dim", ..., "head_dim is missing"),
        (ZLAB_1, "hidden_size", 2**20 + 1, "1048576"),
        (ZLAB_1, "hidden_size", True, "hidden_size is true"),
        (ZLAB_1, "hidden_size", 32.0, "hidden_size is 32.0"),
        (ZLAB_1, "rms_norm_eps", -1.0, "rms_norm_eps"),
        (ZLAB_1, "attention_bias", 1, "attention_bias is 1"),
        (ZLAB_1, "block_size", 1, "block_size is 1"),
        (ZLAB_1, "draft_vocab_size", 32, "draft_vocab_size"),
        (ZLAB_1, "target_hidden_size", 64, "target_hidden_size"),
        (ZLAB_1, "dtype", "float8_e4m3fn", "dtype"),
        (ZLAB_1, "torch_dtype", "float16", "torch_dtype is float16"),
        (ZLAB_2, "dflash_config.selector_rank", ..., "selector_rank is missing"),
        (ZLAB_2, "dflash_config.selector_top_k", 65, "selector_top_k"),
        (ZLAB_2, "dflash_config.conv_group_size", 5, "does not divide"),
        (ZLAB_2, "dflash_config.output_multiplier", 0, "output_multiplier"),
        (SPECFORGE_1, "dflash_config.projector_type", "domino", "a Domino draft of SpecForge"),
        (SPECFORGE_1, "dflash_config.projector_type", "dspark", "markov_rank is missing"),
        (SPECFORGE_1, "dflash_config.projector_type", "dspine", "another draft head"),
        (SPECFORGE_1, "dflash_config.markov_rank", 6, "config.json: markov_rank is 6, but"),
        (SPECFORGE_1, "dflash_config.attention_mode", "mla", "attention_mode is 'mla'"),
        (SPECFORGE_1, "dflash_config.attention_modes", ["gqa", "kda"], "attention_modes is not understood"),
        (SPECULATORS_1, "aux_hidden_state_layer_ids", [0, 4], "layers count from 1"),
        (SPECULATORS_1, "aux_hidden_state_layer_ids", ..., "aux_hidden_state_layer_ids is missing"),
        (SPECULATORS_1, "draft_vocab_size", 65, "more than vocab_size"),
        (SPECULATORS_1, "projector_type", "domino", "projector_type is 'domino'"),
        (SPECULATORS_1, "sample_from_anchor", True, "DSpark"),
        (SPECULATORS_1, "transformer_layer_config", None, "transformer_layer_config is null"),
        (SPECULATORS_1, "transformer_layer_config.is_causal", True, "transformer_layer_config.is_causal"),
        (SPECULATORS_1, "speculators_config.algorithm", "eagle3", "speculators_config.algorithm is 'eagle3'"),
        (SPECULATORS_1, "speculators_config.proposal_methods", {"a": 1}, "proposal_methods"),
        (SPECULATORS_1, "speculators_config.verifier", "x", "speculators_config.verifier is 'x'"),
        (SPECULATORS_1, "architectures", ["DFlash2DraftModel"], "architectures"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(config, path, value, named):
    config = changed(config, path, value)
    if named is None:
        assert not any(one.matches(config) for one in DIALECTS.values())
    else:
        assert named in refused(config)


def test_harmless_values_of_dangerous_keys_are_accepted():
    harmless = {"mlp_bias": False, "logit_scale": 1.0, "quantization_config": None, "is_neox_style": True}
    harmless |= {
        "draft_vocab_size": 64,
        "target_hidden_size": 32,
        "eagle_aux_hidden_state_layer_ids": [2, 5, 8],
    }
    plain = spec_of(ZLAB_1)
    assert spec_of({**ZLAB_1, **harmless}) == plain
    domino_sizes = {"projector_type": "dflash", "emb_dim": 256, "gru_hidden_dim": 1024, "shift_label": False}
    assert spec_of({**SPECULATORS_1, **domino_sizes}).layers == spec_of(SPECULATORS_1).layers


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**ZLAB_1, "architectures": ["DSparkDraftModel"]}, "markov_rank is missing"),
        ({**ZLAB_SPARK, "architectures": ["Lfm2DSparkDraftModel"]}, "of another body than Qwen3's"),
        ({**ZLAB_1, "architectures": ["DominoDraftModel"]}, "a Domino draft of SpecForge"),
        ({**ZLAB_1, "architectures": ["Qwen3DSparkModel"]}, "a DSpark draft of DeepSpec"),
        ({**ZLAB_1, "architectures": ["MuseGlimmerAssistantForCausalLM"]}, "a Muse assistant"),
        ({**ZLAB_1, "architectures": ["LagunaDFlashDraftModel"]}, "a Laguna draft"),
        ({**SPECULATORS_1, "speculators_model_type": "dspark"}, "speculators_model_type is 'dspark'"),
        ({**SPECULATORS_1, "speculators_model_type": ...}, "architectures is "),
        ({"open_spec_config_version": "0.0.0"}, "the open speculator format"),
        ({"dspark_block_size": 5, "architectures": ["DeepseekV4ForCausalLM"]}, "DeepSeek-V4"),
        ({"architectures": ["LlamaForCausalLM"]}, "no dialect recognises"),
        ({}, "There are: zlab, specforge, speculators"),
    ],
)
def test_drafts_of_other_kinds_are_refused_by_name(tmp_path, config, named):
    config = {key: value for key, value in config.items() if value is not ...}
    folder = write(tmp_path / "draft", config, {})
    with pytest.raises(CheckpointError, match=r"draft/config\.json: ") as caught:
        load_checkpoint(folder, DIALECTS)
    assert named in str(caught.value)


def test_sinks_bias_and_scales_are_read():
    keys = {"attention_sink_bias": True, "attention_value_scale": 0.707, "input_embedding_scale": 5}
    spec = spec_of({**ZLAB_1, "attention_bias": True, "dflash_config": {**ZLAB_1["dflash_config"], **keys}})
    assert (spec.attention_bias, spec.attention_sinks) == (True, True)
    assert (spec.attention_value_scale, spec.input_embedding_scale) == (0.707, 5.0)
