"""Fits a two-layer MLP to what became of drafted slots."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_core.checkpoint.confidence import CONFIDENCE_PREFIX, confidence_parameters
from dflash_core.drafter.confidence import head_inputs
from dflash_core.errors import RequestError
from dflash_core.spec import ConfidenceFeature, ConfidenceSpec, DraftSpec
from dflash_core.training.confidence.observations import Observations

BUDGET = 0.001
"""Share of target's and draft's parameters that a head stays below."""
WIDEST = 256
ALL_FEATURES: tuple[ConfidenceFeature, ...] = ("slot", "log_prob")


@dataclass(frozen=True)
class FitOptions:
    """How the head is fitted.

    Attributes:
        width: between the two layers.
        features: beside the hidden state.
        epochs: at most; it ends earlier when the validation loss has not fallen for `patience` of them.
        batch: slots a step.
        dropout: share of the hidden state that is left out in a step.
        hidden_scale: of the hidden state beside the features, both standardised. The hundreds of numbers of
            a hidden state otherwise drown out the one that says most, the draft's own probability.
        seed: of the first weights and of the order.
    """

    width: int = 128
    features: tuple[ConfidenceFeature, ...] = ALL_FEATURES
    epochs: int = 60
    patience: int = 6
    batch: int = 512
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    dropout: float = 0.5
    hidden_scale: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class Examples:
    """Slots that were reached: what the head takes [M, D + features], and whether they were kept [M]."""

    inputs: Tensor
    kept: Tensor


def width_within(spec: DraftSpec, features: tuple[ConfidenceFeature, ...], parameters: int) -> int:
    """The largest power of two up to 256 with which a head stays below a thousandth of the parameters.

    Args:
        parameters: of target and draft together. Where even a width of 1 is too much, 1 it is.
    """
    slots = spec.block_size - 1
    width = WIDEST
    while width > 1:
        head = ConfidenceSpec(width, features, (1.0,) * slots)
        if confidence_parameters(spec, head) < BUDGET * parameters:
            break
        width //= 2
    return width


def examples_of(observations: Observations, features: tuple[ConfidenceFeature, ...]) -> Examples:
    """All slots that were reached, so those of which it is known whether the target takes them."""
    slots = observations.hidden.shape[1]
    reached = observations.reached
    inputs = head_inputs(observations.hidden, observations.log_probs, features, slots)
    return Examples(inputs[reached], observations.survived[reached].float())


def fit_head(
    train: Observations,
    validation: Observations,
    options: FitOptions,
    on_epoch: Callable[[int, float, float], None] = lambda epoch, loss, validation: None,
) -> dict[str, Tensor]:
    """Least cross-entropy of "kept, given that all before were kept", with early stopping.

    The inputs are standardised while it is fitted; that is then taken into the first layer, so that the head
    takes them as they come.

    Args:
        on_epoch: called with the epoch's number, its training and its validation loss in nats a slot.

    Returns:
        The head's tensors by canonical name, float32.

    Raises:
        RequestError: a part is empty, or its drafts were all kept or all dropped.
    """
    seen, held = examples_of(train, options.features), examples_of(validation, options.features)
    _check(seen, "fit")
    _check(held, "validate")
    generator = torch.Generator().manual_seed(options.seed)
    mean = seen.inputs.mean(0)
    spread = seen.inputs.std(0).clamp(min=1e-4)
    width = train.hidden.shape[-1]
    spread[:width] /= options.hidden_scale
    mlp = _network(seen.inputs.shape[1], width, options, generator, float(seen.kept.mean()))
    optimizer = torch.optim.AdamW(mlp.parameters(), options.learning_rate, weight_decay=options.weight_decay)
    steps = options.epochs * -(-len(seen.kept) // options.batch)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    held_inputs = (held.inputs - mean) / spread
    best, waited, kept = float("inf"), 0, copy.deepcopy(mlp.state_dict())
    for epoch in range(1, options.epochs + 1):
        total = 0.0
        for rows in torch.randperm(len(seen.kept), generator=generator).split(options.batch):
            inputs = (seen.inputs[rows] - mean) / spread
            inputs[:, :width] = _dropped(inputs[:, :width], options.dropout, generator)
            loss = F.binary_cross_entropy_with_logits(mlp(inputs)[:, 0], seen.kept[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(mlp.parameters(), 1.0)
            optimizer.step()
            cosine.step()
            total += float(loss.detach()) * len(rows)
        with torch.no_grad():
            now = float(F.binary_cross_entropy_with_logits(mlp(held_inputs)[:, 0], held.kept))
        on_epoch(epoch, total / len(seen.kept), now)
        if now < best:
            best, waited, kept = now, 0, copy.deepcopy(mlp.state_dict())
        elif (waited := waited + 1) >= options.patience:
            break
    return _unstandardised(kept, mean, spread)


def _network(
    inputs: int, hidden: int, options: FitOptions, generator: torch.Generator, rate: float
) -> nn.Sequential:
    """First weights from the generator alone; the second layer starts at the base rate."""
    up, down = nn.Linear(inputs, options.width), nn.Linear(options.width, 1)
    with torch.no_grad():
        up.weight.copy_(torch.randn(up.weight.shape, generator=generator))
        up.weight[:, :hidden] /= hidden**0.5
        up.weight[:, hidden:] /= max(1, inputs - hidden) ** 0.5
        up.bias.zero_()
        down.weight.copy_(torch.randn(down.weight.shape, generator=generator) * 0.1 / options.width**0.5)
        down.bias.fill_(torch.tensor(rate).logit().item())
    return nn.Sequential(up, nn.SiLU(), down)


def _dropped(inputs: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Inputs of which a share is 0, the others made up for it."""
    if not share:
        return inputs
    return inputs * (torch.rand(inputs.shape, generator=generator) >= share) / (1 - share)


def _unstandardised(weights: Mapping[str, Tensor], mean: Tensor, spread: Tensor) -> dict[str, Tensor]:
    up = weights["0.weight"] / spread
    return {
        f"{CONFIDENCE_PREFIX}up.weight": up,
        f"{CONFIDENCE_PREFIX}up.bias": weights["0.bias"] - up @ mean,
        f"{CONFIDENCE_PREFIX}down.weight": weights["2.weight"].clone(),
        f"{CONFIDENCE_PREFIX}down.bias": weights["2.bias"].clone(),
    }


def _check(examples: Examples, what: str) -> None:
    if not len(examples.kept) or float(examples.kept.mean()) in (0.0, 1.0):
        raise RequestError(
            f"There are {len(examples.kept)} slots to {what} a confidence head with, of which "
            f"{int(examples.kept.sum())} were accepted; some must be accepted and some rejected. "
            "Give more prompts, or longer answers."
        )
