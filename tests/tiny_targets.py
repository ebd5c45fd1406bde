"""Small random models of every architecture tried, and the plain forward that they are compared with."""

import torch
import transformers

from dflash_backends.transformers.load import from_model
from dflash_core.tree import TokenTree, chain

VOCABULARY = 97
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4, "max_position_embeddings": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GATED_DELTA = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4},
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
SLIDING = ["sliding_attention", "full_attention"] * 2

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, **HEADS, intermediate_size=48),
    "mistral-sliding": lambda: transformers.MistralConfig(
        **COMMON, **HEADS, intermediate_size=48, sliding_window=3
    ),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON, **HEADS, intermediate_size=48),
    "qwen2-sliding": lambda: transformers.Qwen2Config(
        **COMMON,
        **HEADS,
        intermediate_size=48,
        use_sliding_window=True,
        sliding_window=3,
        layer_types=SLIDING,
    ),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, **HEADS, intermediate_size=48),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(**COMMON, **HEADS, **EXPERTS, intermediate_size=48),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **COMMON,
        **HEADS,
        intermediate_size=48,
        sliding_window=3,
        layer_types=SLIDING,
        query_pre_attn_scalar=5,
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **COMMON, **HEADS, intermediate_size=24, num_local_experts=4, sliding_window=3, layer_types=SLIDING
    ),
    "qwen3-next": lambda: transformers.Qwen3NextConfig(
        **COMMON, **HEADS, **EXPERTS, **GATED_DELTA, intermediate_size=48, shared_expert_intermediate_size=24
    ),
    "qwen3.5": lambda: transformers.Qwen3_5TextConfig(
        **COMMON, **HEADS, **GATED_DELTA, intermediate_size=48, rope_parameters=MROPE
    ),
}
RECURRENT = ("qwen3-next", "qwen3.5")
ATTENDING = tuple(name for name in CONFIGS if name not in RECURRENT)
WITHOUT_SDPA = ("gpt-oss",)


def tiny_target(name, attention=None, seed=0, **options):
    """A target whose weights are spread widely enough that its tokens depend on its context."""
    torch.manual_seed(seed)
    config = CONFIGS[name]()
    attention = attention or ("eager" if name in WITHOUT_SDPA else "sdpa")
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim > 1 and "conv1d" not in key:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            elif key.endswith(("bias", "sinks")):
                parameter.normal_(0, 0.5)
    return from_model(model, **options)


def random_tokens(*shape, seed=0):
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def prompts(*lengths, seed=0):
    return [random_tokens(length, seed=seed + index).tolist() for index, length in enumerate(lengths)]


def random_chain(num_nodes, seed=0):
    """A chain a row, padded to the longest."""
    tokens = random_tokens(len(num_nodes), max(num_nodes), seed=seed)
    return chain(tokens, torch.tensor(num_nodes))


def tree_of(parents, num_nodes, seed=0):
    """Trees from their parent lists; padding nodes stand alone."""
    parents = torch.tensor(parents)
    batch, width = parents.shape
    depths, visible = (
        torch.zeros(batch, width, dtype=torch.int64),
        torch.eye(width).bool().repeat(batch, 1, 1),
    )
    for row in range(batch):
        for node in range(1, num_nodes[row]):
            above = int(parents[row, node])
            depths[row, node] = depths[row, above] + 1
            visible[row, node] |= visible[row, above]
    return TokenTree(
        tokens=random_tokens(batch, width, seed=seed),
        parents=parents,
        depths=depths,
        visible=visible,
        num_nodes=torch.tensor(num_nodes),
        max_depth=int(depths.max()),
        is_chain=False,
    )


def path(tree, row, node):
    """The nodes from the root to this one."""
    nodes = [node]
    while int(tree.parents[row, nodes[0]]) >= 0:
        nodes.insert(0, int(tree.parents[row, nodes[0]]))
    return nodes


@torch.no_grad()
def plain_forward(target, tokens):
    """Logits [T, V] and the block outputs [L, T, D], by one forward without a cache or a mask of ours.

    The last entry of transformers' hidden states is normed already, so the last block is not among these.
    """
    output = target.model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    return output.logits[0], torch.cat(output.hidden_states[1:-1])


@torch.no_grad()
def plain_greedy(target, prompt, count):
    """Greedy decoding that recomputes everything for every token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(plain_forward(target, tokens)[0][-1].argmax()))
    return tokens[len(prompt) :]


def assert_near(actual, expected, tolerance=1e-4):
    """Equal within `tolerance` of the largest magnitude."""
    bound = tolerance * expected.abs().max()
    assert (actual - expected).abs().max() <= bound, f"differs by {(actual - expected).abs().max():.2e}"
