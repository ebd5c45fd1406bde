"""Where training begins: random weights, or the target's own last layers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_core.checkpoint.dspark import FROM, INTO
from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.checkpoint.shapes import part_of, tensor_shapes
from dflash_core.errors import CheckpointError, UnsupportedError
from dflash_core.spec import DraftSpec
from dflash_core.target import TargetModel

SPREAD = 0.02
"""Standard deviation of random matrices."""

TABLES = {
    "candidate_selector.successor_codebook": "candidate_selector.predecessor_codebook",
    INTO: FROM,
}
"""Of the tokens that follow, and what they follow."""

ADDED = ("convolutions", "selector", "Markov head")
"""Parts that do nothing before they are trained."""

ALIKE = (
    *("taps", "mask_token_id", "anchor_predicts"),
    *("input_embedding_scale", "output_multiplier", "final_logit_softcapping"),
)
"""What weights mean depends on; shapes are compared as well."""


def random_tensors(spec: DraftSpec, seed: int) -> dict[str, Tensor]:
    """Norms at 1, convolutions that pass their input through, matrices at random."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in tensor_shapes(spec).items():
        if name.endswith("norm.weight"):
            found[name] = torch.ones(shape)
        elif name.endswith("base_kernel"):
            found[name] = torch.zeros(shape)
            found[name][:, 0] = 1.0
        elif "kernel_projection" in name or name in TABLES.values():
            found[name] = torch.zeros(shape)
        else:
            found[name] = torch.randn(shape, generator=generator) * SPREAD
    return found


def learnt_successors(tensors: Mapping[str, Tensor], head: Tensor) -> dict[str, Tensor]:
    """Weights in which the following tokens of a selector or Markov head that has learnt nothing yet lie as
    the target's head has them: those that follow alike are alike from the start, and rare ones learn from
    the others.

    Args:
        head: [V, D], the target's. The table gets its main components, at a mean square of one.
    """
    found = dict(tensors)
    for following, before in TABLES.items():
        if following in found and not found[before].any():
            centred = head.float() - head.float().mean(0)
            _, directions = torch.linalg.eigh(centred.t() @ centred)
            components = centred @ directions[:, -found[following].shape[1] :]
            found[following] = components / components.square().mean().sqrt()
    return found


def draft_tensors(spec: DraftSpec, folder: Path, seed: int = 0) -> dict[str, Tensor]:
    """The weights of a draft of the same kind, to go on from; a selector or a Markov head that it lacks is
    added such that the draft still says the same.

    Raises:
        CheckpointError: it cannot be read, or is another kind of draft.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f'start is "{folder}", which is no folder; it may be "target" or "random", too.'
        )
    checkpoint = load_checkpoint(folder)
    for name in ALIKE:
        if (its := getattr(checkpoint.spec, name)) != (own := getattr(spec, name)):
            raise CheckpointError(
                f"{folder}: {name} is {its}, but {own} for the draft that is to be trained; choose what the "
                "draft to go on from has."
            )
    tensors = checkpoint.tensors
    if lost := set(map(part_of, tensors)) & set(ADDED) - set(map(part_of, tensor_shapes(spec))):
        raise CheckpointError(
            f"{folder} has {' and '.join(sorted(lost))}, which would be lost; train a draft with the same."
        )
    missing = set(ADDED) - set(map(part_of, tensors))
    fresh = random_tensors(spec, seed)
    tensors = {**tensors, **{name: fresh[name] for name in fresh if part_of(name) in missing}}
    for name, shape in tensor_shapes(spec).items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != tuple(shape):
            raise CheckpointError(
                f"{folder}: {name} is {list(found) if found else 'missing'}, but the draft that is to be "
                f"trained needs {list(shape)}; choose the layers, taps and kind of the draft to go on from."
            )
    return {name: tensors[name].float() for name in tensor_shapes(spec)}


def target_tensors(
    spec: DraftSpec, target: TargetModel, samples: Sequence[Sequence[int]], seed: int
) -> dict[str, Tensor]:
    """Random tensors with the target's last layers in place of the draft's.

    The context enters a draft layer without that layer's input norm, so the norm's weight is folded into
    the projections; `fc` passes the deepest tap on; the draft norms queries and keys, so the weights of those
    norms are the sizes that the target's own queries and keys have on `samples`.

    Args:
        samples: token ids of a few texts.

    Raises:
        UnsupportedError: the target does not give its layers, or they have other shapes than the draft's.
    """
    give: Any = getattr(target, "layer_weights", None)
    if give is None:
        raise UnsupportedError(f"{target.info.name} does not give its layers; begin with random weights.")
    found = random_tensors(spec, seed)
    count = target.info.num_layers
    width = spec.hidden_size
    found["fc.weight"] *= 0.1
    found["fc.weight"][:, -width:] += torch.eye(width)
    found["norm.weight"] = give(None)["norm.weight"].float()
    sources = range(count - spec.num_layers, count)
    inputs = _inputs(target, [source - 1 for source in sources], samples)
    for index, source in enumerate(sources):
        own = {name: weight.float() for name, weight in give(source).items()}
        for name, weight in _layer(own, inputs[index], spec, source).items():
            full = f"layers.{index}.{name}"
            if found[full].shape != weight.shape:
                raise UnsupportedError(
                    f"Layer {source} of {target.info.name} has {name} of shape {list(weight.shape)}, the "
                    f"draft {list(found[full].shape)}; begin with random weights."
                )
            found[full] = weight.clone()
    return found


def _layer(own: Mapping[str, Tensor], x: Tensor, spec: DraftSpec, source: int) -> dict[str, Tensor]:
    """Tensors of a draft layer from those of a target layer and inputs x [n, D] that it had."""
    try:
        norm = own["input_layernorm.weight"]
        folded = {
            f"self_attn.{kind}_proj.weight": own[f"self_attn.{kind}_proj.weight"] * norm for kind in "qkv"
        }
        copied = (
            "self_attn.o_proj.weight",
            "post_attention_layernorm.weight",
            *(f"mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")),
        )
        found = {**folded, **{name: own[name] for name in copied}}
    except KeyError as error:
        raise UnsupportedError(
            f"Layer {source} of the target has no {error.args[0]}; begin with random weights."
        ) from None
    normed = F.rms_norm(x, x.shape[-1:], None, spec.rms_norm_eps)
    for kind in "qk":
        name = f"self_attn.{kind}_norm.weight"
        projected = (normed @ folded[f"self_attn.{kind}_proj.weight"].t()).view(-1, spec.head_dim)
        size = projected.square().mean(-1).sqrt().mean()
        found[name] = own.get(name, torch.full((spec.head_dim,), float(size)))
    return {**found, "input_layernorm.weight": torch.ones_like(norm)}


def _inputs(target: TargetModel, taps: Sequence[int], samples: Sequence[Sequence[int]]) -> list[Tensor]:
    """What the layers after `taps` are given on the samples, [n, D] each."""
    found = []
    for sample in samples:
        hidden = target.start(tuple(taps)).prefill(list(sample)).taps
        if hidden is not None:
            found.append(hidden[0].float())
    return list(torch.cat(found).chunk(len(taps), -1))
