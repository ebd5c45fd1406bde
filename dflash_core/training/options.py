"""What a training run is asked for."""

import math
from dataclasses import dataclass
from typing import get_args

from dflash_core.drafter.options import DTYPES
from dflash_core.errors import SettingsError
from dflash_core.training.loss import Weighting

SEEDS = 1 << 26
"""Seeds that there are: those of steps, rows and epochs follow from them, and must fit 64 bits."""


@dataclass(frozen=True)
class TrainOptions:
    """The recipe. Defaults are the paper's where a small machine can afford them.

    Attributes:
        steps: optimiser steps in all; the learning rate follows a cosine over them.
        batch: sequences a step.
        anchors: blocks a sequence and step, at random places.
        block_size: slots of a block, the anchor counted.
        learning_rate, warmup, weight_decay, clip: of AdamW; `warmup` as a share of the steps.
        gamma: slot k weighs `exp(-(k - 1) / gamma)`; 4, 5, 7 for blocks of 8, 10, 16.
        weighting: "decay" by gamma alone, or "dpace", by the draft's own confidence.
        distill: share of a slot's loss that is cross entropy with what the target thought likely (its 8 most
            probable tokens, as far as the draft knows them); the rest is with the token that it chose. What a
            selector or a Markov head adds is learnt from that token alone.
        noise: standard deviation of noise on the hidden states, in their own root mean squares.
        draft_vocab: learn the so many lowest token ids only, or those listed in a JSON file; the draft is
            then best run with the same.
        start: "target" begins with the target's last layers, "random" with nothing, the folder of a draft
            with that draft's weights.
        dtype: what the forward and backward pass is computed in; weights and optimiser stay float32.
        seed: of everything.
    """

    steps: int = 2000
    batch: int = 16
    anchors: int = 32
    block_size: int = 8
    learning_rate: float = 1e-3
    warmup: float = 0.04
    weight_decay: float = 0.01
    clip: float = 1.0
    gamma: float = 4.0
    weighting: Weighting = "decay"
    distill: float = 0.0
    noise: float = 0.0
    draft_vocab: int | str | None = None
    start: str = "target"
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("weighting", get_args(Weighting)), ("dtype", DTYPES)):
            if getattr(self, name) not in known:
                raise SettingsError(
                    f"{name} is {getattr(self, name)!r}; it must be one of: {', '.join(known)}."
                )
        for name in ("steps", "batch", "anchors"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not 0 <= self.seed < SEEDS:
            raise SettingsError(f"seed is {self.seed}; it must be from 0 to {SEEDS - 1}.")
        if self.block_size < 2:
            raise SettingsError(
                f"block_size is {self.block_size}; it must be at least 2, the anchor counted."
            )
        if not 0 < self.learning_rate < 1:
            raise SettingsError(f"learning_rate is {self.learning_rate}; it must lie between 0 and 1.")
        for name in ("gamma", "clip"):
            if not 0 < (value := getattr(self, name)) < math.inf:  # which is not so of NaN either
                raise SettingsError(f"{name} is {value}; it must be a finite number above 0.")
        for name in ("noise", "weight_decay"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise SettingsError(f"{name} is {value}; it must be a finite number, 0 or more.")
        if not 0 <= self.warmup < 1:
            raise SettingsError(f"warmup is {self.warmup}; it is a share of the steps, from 0 up to 1.")
        if not 0 <= self.distill <= 1:
            raise SettingsError(f"distill is {self.distill}; it is a share of the loss, from 0 to 1.")
