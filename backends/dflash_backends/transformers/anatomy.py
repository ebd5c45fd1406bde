"""Where the parts of a transformers model are, and whether this backend can drive it."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dflash_backends.transformers.attention import GROUPED
from dflash_core.errors import UnsupportedError

ATTENTION = ("sdpa", "eager", GROUPED)
"""Attention implementations that take a mask of one's own."""

KINDS = ("full_attention", "sliding_attention", "linear_attention")


@dataclass(frozen=True)
class Anatomy:
    """The parts of a decoder-only model that this backend touches.

    Attributes:
        name: for messages.
        config: of the text decoder.
        layers: the decoder's blocks.
        layer_types: one of `KINDS` a layer.
        windows: attention kind -> its sliding window in positions, `None` for full attention.
        masks_by_type: whether the model takes a mask a layer type instead of one for all.
        mixers: layer index -> the module with the recurrent state.
    """

    name: str
    model: PreTrainedModel
    config: Any
    layers: Sequence[nn.Module]
    layer_types: tuple[str, ...]
    windows: Mapping[str, int | None]
    masks_by_type: bool
    mixers: Mapping[int, nn.Module]

    @property
    def embedding(self) -> Tensor:
        """[V, D]."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> nn.Module:
        head: nn.Module = self.model.get_output_embeddings()
        return head

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype


def dissect(model: PreTrainedModel, name: str) -> Anatomy:
    """Find the parts.

    Raises:
        UnsupportedError: it is not decoder-only, or has a part that this backend cannot drive.
    """
    config = model.config.get_text_config(decoder=True)
    kind = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedError(
            f"{name}: {kind} is an encoder-decoder model; only decoder-only models can be run."
        )
    if model.get_output_embeddings() is None:
        raise UnsupportedError(
            f"{name}: {kind} has no language-model head; load it with AutoModelForCausalLM."
        )
    if config._attn_implementation not in ATTENTION:
        raise UnsupportedError(
            f"{name}: its attention implementation is {config._attn_implementation!r}, which takes no mask "
            f"of our own. Load it with attn_implementation set to one of: {', '.join(ATTENTION)}."
        )
    if len({parameter.device for parameter in model.parameters()}) > 1:
        raise UnsupportedError(f"{name}: its weights lie on several devices; load it on one.")
    if "cache" not in inspect.signature(model.forward).parameters:
        raise UnsupportedError(
            f"{name}: {kind} does not take its cache as `cache`, so it is older than transformers 5.24 or "
            "has none; update transformers, or use another model."
        )
    types = _layer_types(config, name)
    layers = _blocks(model, len(types), name)
    return Anatomy(
        name=name,
        model=model,
        config=config,
        layers=layers,
        layer_types=types,
        windows={
            attention: config.sliding_window if attention == "sliding_attention" else None
            for attention in dict.fromkeys(types)
            if attention != "linear_attention"
        },
        masks_by_type=hasattr(config, "layer_types"),
        mixers={
            index: _mixer(layers[index], name)
            for index, attention in enumerate(types)
            if attention == "linear_attention"
        },
    )


def _layer_types(config: Any, name: str) -> tuple[str, ...]:
    types: Sequence[str] | None = getattr(config, "layer_types", None)
    if types is None:
        window = getattr(config, "sliding_window", None)
        types = ["full_attention" if window is None else "sliding_attention"] * config.num_hidden_layers
    unknown = sorted(set(types) - set(KINDS))
    if unknown:
        raise UnsupportedError(
            f"{name}: it has layers of type {', '.join(unknown)}; those that can be run are "
            f"{', '.join(KINDS)}."
        )
    return tuple(types)


def _blocks(model: PreTrainedModel, count: int, name: str) -> Sequence[nn.Module]:
    for child in model.get_decoder().children():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return list(child)
    raise UnsupportedError(
        f"{name}: {type(model).__name__} has no list of its {count} decoder layers where one is expected, so "
        "their outputs cannot be tapped."
    )


def _mixer(layer: nn.Module, name: str) -> nn.Module:
    mixer = getattr(layer, "linear_attn", None)
    if not isinstance(mixer, nn.Module):
        raise UnsupportedError(
            f"{name}: the recurrent part of {type(layer).__name__} is not called `linear_attn`, so its state "
            "cannot be rolled back."
        )
    return mixer
