"""Random drafts in z-lab's layout, loadable by `dflash` 0.1.0 and by us.

`write_draft(folder, seed, second=...)` writes a checkpoint whose config varies with the seed;
`load_dflash(folder)` is the yardstick's model of it. Import only after `pytest.importorskip("dflash")`.
"""

import json
import random
from pathlib import Path
from typing import Any

import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

VOCAB = 89
TARGET_LAYERS = 8
HEADS = ((4, 4), (4, 2), (4, 1), (6, 3), (6, 2))
ROPES = (
    None,
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 1.3},
    {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 48,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
)


def random_config(seed: int, *, second: bool, width: int = 48, vocab: int = VOCAB) -> dict[str, Any]:
    """A config.json; consecutive seeds walk through the features, so that a few of them cover all."""
    rng = random.Random(f"{seed} {second}")
    heads, kv_heads = HEADS[seed % len(HEADS)]
    layers = 1 + seed % 5
    kinds = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    if seed % 3 == 0:
        kinds[rng.randrange(layers)] = "sliding_attention"
    sliding = "sliding_attention" in kinds
    config: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": width,
        "intermediate_size": rng.choice([40, 64, 96]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([8, 12, 16]),
        "hidden_act": "silu",
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        "rms_norm_eps": rng.choice([1e-6, 1e-5]),
        "rope_theta": rng.choice([1e4, 1e6]),
        "rope_scaling": ROPES[(seed + second) % len(ROPES)],
        "attention_bias": seed % 2 == 1,
        "layer_types": kinds,
        "sliding_window": rng.randint(2, 20) if sliding else None,
        "use_sliding_window": sliding,
        "max_window_layers": layers,
        "num_target_layers": TARGET_LAYERS,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "block_size": 2 + seed % 15,
        "dflash_config": {
            "mask_token_id": vocab - 1,
            # not the last one: transformers' tuple of hidden states has it after the final norm
            "target_layer_ids": sorted(rng.sample(range(TARGET_LAYERS - 1), 1 + seed % 6)),
        },
    }
    extras = config["dflash_config"]
    causal = (None, True, False)[seed % 3]
    if causal is not None:
        config["is_causal"] = causal
    if seed % 4 in (1, 2):
        extras |= {"input_embedding_scale": 1.7, "output_multiplier": 0.6}
    if seed % 4 in (2, 3):
        extras["final_logit_softcapping"] = 2.5
    if second:
        extras |= {
            "conv_kernel_size": min(2 + seed % 2, config["block_size"]),
            "conv_group_size": rng.choice([8, 16]),
            "selector_rank": rng.choice([4, 10]),
            "selector_top_k": rng.choice([3, 16]),
        }
    return config


def write_draft(folder: Path, seed: int, *, second: bool, **sizes: int) -> Path:
    """Write `random_config` with random weights into a folder, and return the folder."""
    config = random_config(seed, second=second, **sizes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = _model_class(config)(AutoConfig.from_pretrained(folder))
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name.removesuffix(".weight") if "codebook" in name else name: _random(name, tensor.shape, generator)
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def load_dflash(folder: Path) -> DFlashDraftModel:
    """The yardstick, in float32."""
    config = json.loads((folder / "config.json").read_text())
    model, report = _model_class(config).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


def _model_class(config: dict[str, Any]) -> type[DFlashDraftModel]:
    return DFlash2DraftModel if config["architectures"] == ["DFlash2DraftModel"] else DFlashDraftModel


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Weights large enough that every part of the network shows in its output, yet tame enough that rounding
    does not grow from layer to layer."""
    noise = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1 + 0.2 * noise
    if "base_kernel" in name:
        return 0.3 * noise + 1 / shape[1]
    if "kernel_projection" in name:
        return 0.3 * noise / shape[-1] ** 0.5
    if "bias" in name:
        return 0.3 * noise
    if "codebook" in name:
        return noise
    return noise / shape[-1] ** 0.5
