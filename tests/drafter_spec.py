"""Small draft specs and random checkpoints in memory, for tests of drafters."""

from dataclasses import replace
from typing import Any

import torch

from dflash_core.checkpoint.base import DraftCheckpoint
from dflash_core.checkpoint.shapes import D2T, tensor_shapes
from dflash_core.spec import ConvSpec, DraftSpec, LayerSpec, MarkovSpec, RopeSpec, SelectorSpec


def small_spec(**changes: Any) -> DraftSpec:
    """Two layers, one of them with a window, 24 wide, block 5, vocabulary 61."""
    spec = DraftSpec(
        dialect="zlab",
        hidden_size=24,
        intermediate_size=40,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        vocab_size=61,
        layers=(LayerSpec(None, False), LayerSpec(7, True)),
        taps=(1, 3, 5),
        block_size=5,
        mask_token_id=60,
        rope=RopeSpec(theta=10000.0),
        num_target_layers=8,
        dtype="float32",
    )
    return replace(spec, **changes)


def second_spec(**changes: Any) -> DraftSpec:
    """The same as DFlash2."""
    return small_spec(**{"conv": ConvSpec(2, 8), "selector": SelectorSpec(rank=5, top_k=6), **changes})


def markov_spec(**changes: Any) -> DraftSpec:
    """The first DFlash with a Markov head."""
    return small_spec(**{"markov": MarkovSpec(rank=5), **changes})


def spark_spec(**changes: Any) -> DraftSpec:
    """The same as DSpark: the anchor's slot predicts."""
    return markov_spec(**{"anchor_predicts": True, **changes})


def random_checkpoint(spec: DraftSpec, seed: int = 0) -> DraftCheckpoint:
    """Random weights of a size that keeps activations near 1."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(spec).items():
        if name == D2T:
            chosen = torch.randperm(spec.vocab_size, generator=generator)[: shape[0]]
            tensors[name] = chosen.sort().values
            continue
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.2 * noise if "norm" in name else noise / max(shape[-1], 1) ** 0.5
    return DraftCheckpoint(spec, tensors)
