"""Small drafts in every layout, with configs as the layouts' own programs write them, and a target."""

import copy
import json
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file

from dflash_core.checkpoint.shapes import INTEGERS, own_shapes, tensor_shapes
from dflash_core.checkpoint.specforge import DIALECT as SPECFORGE
from dflash_core.checkpoint.speculators import DIALECT as SPECULATORS
from dflash_core.checkpoint.zlab import DIALECT as ZLAB
from dflash_core.spec import DraftSpec

DIALECTS = {one.name: one for one in (ZLAB, SPECFORGE, SPECULATORS)}
BORROWED = Path(__file__).parents[2] / "drafts/SmolLM2-135M-Instruct-DFlash-b8-borrowed"

BODY = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 48,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 4096,
    "max_window_layers": 2,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 64,
}
ZLAB_1 = {
    **BODY,
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 8,
    "dflash_config": {"mask_token_id": 63, "target_layer_ids": [1, 4, 7]},
    "dtype": "bfloat16",
    "num_target_layers": 10,
    "transformers_version": "4.57.3",
}
ZLAB_2 = {
    **{key: value for key, value in BODY.items() if key not in ("rope_theta", "rope_scaling")},
    "architectures": ["DFlash2DraftModel"],
    "is_causal": False,
    "layer_types": ["sliding_attention", "sliding_attention"],
    "sliding_window": 16,
    "use_sliding_window": True,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "dflash_config": {
        "block_size": 8,
        "conv_group_size": 8,
        "conv_kernel_size": 2,
        "mask_token_id": 63,
        "selector_rank": 6,
        "selector_top_k": 4,
        "target_layer_ids": [2, 5, 8],
        "output_multiplier": 0.19611613513818404,
        "final_logit_softcapping": 20.0,
    },
    "dtype": "bfloat16",
    "num_target_layers": 10,
    "transformers_version": "5.8.1",
}
SPECFORGE_1 = {
    **ZLAB_1,
    "auto_map": {"AutoModel": "modeling_dflash.DFlashDraftModel"},
    "dflash_config": {**ZLAB_1["dflash_config"], "projector_type": "dflash"},
}
DSPARK_SECTION = {
    **ZLAB_1["dflash_config"],
    "confidence_head_alpha": 1.0,
    "confidence_head_with_markov": True,
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 6,
}
SPECFORGE_SPARK = {
    **ZLAB_1,
    "architectures": ["DSparkDraftModel"],
    "auto_map": {"AutoModel": "dspark.DSparkDraftModel"},
    "block_size": 7,
    "dflash_config": {**DSPARK_SECTION, "projector_type": "dspark"},
}
ZLAB_SPARK = {
    **{key: value for key, value in SPECFORGE_SPARK.items() if key != "auto_map"},
    "dflash_config": {**ZLAB_1["dflash_config"], "enable_confidence_head": False, "markov_rank": 6},
}
ZLAB_MARKOV = {
    **ZLAB_1,
    "dflash_config": {**ZLAB_1["dflash_config"], "markov_head_type": "vanilla", "markov_rank": 6},
}
SPECULATORS_1 = {
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"": "config.DFlashSpeculatorConfig"},
    "aux_hidden_state_layer_ids": [2, 5, 8],
    "block_size": 8,
    "draft_vocab_size": 24,
    "dtype": "bfloat16",
    "mask_token_id": 63,
    "sample_from_anchor": False,
    "sliding_window_non_causal": False,
    "speculators_config": {
        "algorithm": "dflash",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "accept_tolerance": 0.0,
                "proposal_type": "greedy",
                "speculative_tokens": 7,
                "verifier_accept_k": 1,
            }
        ],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "someone/some-target"},
    },
    "speculators_model_type": "dflash",
    "speculators_version": "0.7.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        **{key: value for key, value in BODY.items() if key not in ("rope_theta", "rope_scaling")},
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 16,
        "use_sliding_window": True,
    },
    "transformers_version": "5.14.1",
}
CONFIGS = {
    "zlab": ZLAB_1,
    "zlab2": ZLAB_2,
    "zlab-spark": ZLAB_SPARK,
    "zlab-markov": ZLAB_MARKOV,
    "specforge": SPECFORGE_1,
    "specforge-spark": SPECFORGE_SPARK,
    "speculators": SPECULATORS_1,
}
"""By the layout's name; what follows a digit or a hyphen tells drafts of one layout apart."""


def changed(config: dict, path: str, value: object) -> dict:
    """A copy with the value at a dotted path replaced; `...` removes it."""
    config = copy.deepcopy(config)
    *folders, key = path.split(".")
    inner = config
    for folder in folders:
        inner = inner[folder]
    if value is ...:
        del inner[key]
    else:
        inner[key] = value
    return config


def spec_of(config: dict) -> DraftSpec:
    """What the dialect that claims a config reads from it."""
    (dialect,) = [one for one in DIALECTS.values() if one.matches(config)]
    return dialect.read(config, "config.json")


def canonical_tensors(spec: DraftSpec, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Random tensors of a spec in canonical meaning."""
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: (torch.randn(shape, generator=generator) * 0.05).to(dtype)
        for name, shape in tensor_shapes(spec).items()
        if name not in INTEGERS
    }
    if spec.draft_vocab_size is not None:
        ids = torch.randperm(spec.vocab_size, generator=generator)[: spec.draft_vocab_size]
        tensors["d2t"] = ids.sort().values
    return tensors


def tensors_on_disk(config: dict) -> dict[str, torch.Tensor]:
    """Random tensors as the layout of a config stores them; speculators drafts bring embedding and head."""
    spec = spec_of(config)
    tensors = canonical_tensors(spec)
    dialect = DIALECTS[spec.dialect]
    for name, shape in own_shapes(spec).items():
        if name in dialect.optional(spec) and name not in (*INTEGERS, *tensors):
            tensors[name] = torch.randn(shape).to(torch.bfloat16)
    return dialect.encode(tensors)


def write(
    folder: Path, config: dict, tensors: dict[str, torch.Tensor] | None = None, shards: int = 1
) -> Path:
    """Write a checkpoint as the reference programs do."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = tensors_on_disk(config) if tensors is None else tensors
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = sorted(tensors)
    weight_map = {}
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name] for name in names[index::shards]}, folder / file)
        weight_map |= dict.fromkeys(names[index::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_target(folder: Path, tied: bool = False, **changes: object) -> Path:
    """A target that the samples fit: its config, embedding and head."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 32,
        "max_position_embeddings": 4096,
        "num_hidden_layers": 10,
        "rope_theta": 1000000,
        "tie_word_embeddings": tied,
        "vocab_size": 64,
    }
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    generator = torch.Generator().manual_seed(11)
    tensors = {"model.embed_tokens.weight": torch.randn(64, 32, generator=generator)}
    if not tied:
        tensors["lm_head.weight"] = torch.randn(64, 32, generator=generator)
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_header(folder: Path, header: object, data: bytes = b"", length: int | None = None) -> None:
    """Replace a checkpoint's weights by a file with this header, true or not, and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text) if length is None else length) + text + data
    )


def entry(shape: list, offsets: list, dtype: str = "BF16") -> dict:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}
