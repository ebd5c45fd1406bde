"""A draft that is right now and then, for targets small enough to be run many times in a test."""

import torch

from dflash_core.checkpoint.base import DraftCheckpoint
from dflash_core.checkpoint.shapes import body_shapes
from dflash_core.drafter.block import BlockDrafter
from dflash_core.spec import ConvSpec, DraftSpec, LayerSpec, MarkovSpec, RopeSpec, SelectorSpec


def tiny_spec(target, **changes):
    """A v1 draft of two layers for a target; `second=True` makes it a DFlash2 draft, `spark=True` DSpark."""
    second, spark = changes.pop("second", False), changes.pop("spark", False)
    fields = {
        "dialect": "zlab",
        "hidden_size": target.info.hidden_size,
        "intermediate_size": 40,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": target.info.vocab_size,
        "layers": (LayerSpec(None, False), LayerSpec(5, True)),
        "taps": (0, 2),
        "block_size": 6,
        "mask_token_id": target.info.vocab_size - 1,
        "rope": RopeSpec(theta=1e4),
        "num_target_layers": target.info.num_layers,
        "conv": ConvSpec(2, 8) if second else None,
        "selector": SelectorSpec(4, 8) if second else None,
        "markov": MarkovSpec(4) if spark else None,
        "anchor_predicts": spark,
    }
    return DraftSpec(**{**fields, **changes})


def tiny_draft(target, *, seed=0, options=None, **changes):
    """Random weights under a spec. Its guesses lean on the head it borrows, as a trained draft's do."""
    spec = tiny_spec(target, **changes)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in body_shapes(spec).items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = torch.ones(shape) if "norm" in name else noise / shape[-1] ** 0.5
    return BlockDrafter(DraftCheckpoint(spec, tensors), target, **(options or {}))
