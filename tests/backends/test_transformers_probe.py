"""A class that nobody tried is compared with its own forward before it is trusted."""

import pytest
import torch
import transformers
from tiny_targets import CONFIGS, assert_near, plain_forward, prompts, tree_of

from dflash_backends.transformers.load import from_model
from dflash_backends.transformers.probe import TRIED
from dflash_core.errors import UnsupportedError

SIZES = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
UNTRIED = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=3, n_head=4),
    "olmo3": lambda: transformers.Olmo3Config(**SIZES, num_key_value_heads=2, intermediate_size=48),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, num_key_value_heads=2, head_dim=8, intermediate_size=48
    ),
    "latent": lambda: transformers.DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 4, "intermediate_size": 48, "moe_intermediate_size": 16},
        **{"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
        **{"first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "v_head_dim": 12},
        **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
    ),
}


def _model(config):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model


@pytest.mark.parametrize("name", UNTRIED)
def test_a_class_that_passes_can_be_driven(name):
    target = from_model(_model(UNTRIED[name]()))
    state, texts = target.start((0,)), prompts(9, 4)
    for text in texts:
        state.prefill(text)
    tree = tree_of([[-1, 0, 0, 2], [-1, 0, 0, 1]], [4, 4])
    logits = state.verify(tree).logits
    for row, text in enumerate(texts):
        for node in range(4):
            branch = tree.tokens[row, tree.visible[row, node]].tolist()
            assert_near(logits[row, node], plain_forward(target, text + branch)[0][-1])


def test_a_class_that_ignores_the_mask_is_refused():
    """MPT builds position biases from slots, so that a second child would be taken for a grandchild."""
    config = transformers.MptConfig(vocab_size=97, d_model=32, n_layers=2, n_heads=4)
    with pytest.raises(UnsupportedError, match=r"MptForCausalLM cannot be run .* its logits differ"):
        from_model(_model(config))


def test_a_class_that_fails_is_refused_with_its_reason():
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(UnsupportedError, match=r"BloomForCausalLM cannot be run .* ValueError"):
        from_model(_model(config))


def test_the_classes_tried_are_those_that_the_tests_try():
    assert {config().model_type for config in CONFIGS.values()} == set(TRIED)
