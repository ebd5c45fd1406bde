"""How tokens are chosen: settings of one request, and of a batch as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import cast

import torch
from torch import Tensor

from dflash_core.errors import RequestError
from dflash_core.upload import upload


def whole(name: str, value: object) -> int:
    """The value, if it is a whole number.

    Raises:
        RequestError: it is not.
    """
    _require(name, value, Integral, "a whole number")
    return cast(int, value)


def _require(name: str, value: object, kind: type, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise RequestError(f"{name} is {value!r}; it must be {allowed}.")


@dataclass(frozen=True)
class SamplingParams:
    """One request's settings. Temperature 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off.

    The filters apply in transformers' order: temperature, top-k, top-p, min-p.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            _require(name, getattr(self, name), Real, "a number")
        for name in ("top_k", "seed"):
            whole(name, getattr(self, name))
        if not 0 <= self.temperature < float("inf"):
            raise RequestError(
                f"temperature is {self.temperature}; it must be a finite number of at least 0."
            )
        if not 0 <= self.top_k < 2**31:
            raise RequestError(f"top_k is {self.top_k}; it must be from 0 (off) to 2**31 - 1.")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (1 is off).")
        if not 0 <= self.min_p <= 1:
            raise RequestError(f"min_p is {self.min_p}; it must be from 0 to 1 (0 is off).")
        if not 0 <= self.seed < 2**63:
            raise RequestError(f"seed is {self.seed}; it must be from 0 to 2**63 - 1.")


@dataclass(frozen=True)
class SamplingBatch:
    """Settings of a batch, and where its noise comes from.

    Randomness is a pure function of (seed, position, stream), so a request's output depends neither on
    who shares its batch nor on how many tokens were drafted in a cycle.

    Attributes:
        temperature, top_p, min_p: [B] float32.
        top_k: [B] int64.
        seeds: [B] int64.
        positions: [B] int64, the anchor's position; the child of a node at depth i is the token at
            position anchor + i + 1, and is drawn with that position's noise.
        greedy: host flag: every temperature is 0.
        filtered: host flag: some request has a top-k, top-p or min-p.
        max_top_k: the largest top-k, where the host knows it; a hint for speed.
        sampled: [R] int64, the requests whose temperature is above 0, so that the others need no
            probabilities; `None` when that is not known, or when it is all of them.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor
    greedy: bool
    filtered: bool
    max_top_k: int = 0
    sampled: Tensor | None = None

    def decided(self, depths: Tensor) -> Tensor:
        """[B, N] positions of the tokens that follow nodes of these depths [B, N]."""
        return self.positions[:, None] + depths + 1


def sampling_batch(
    params: Sequence[SamplingParams], positions: Sequence[int], device: torch.device | str = "cpu"
) -> SamplingBatch:
    """Settings of the requests of one cycle; `positions[b]` is the position of request b's anchor."""
    floats = torch.tensor([[p.temperature, p.top_p, p.min_p] for p in params], dtype=torch.float32)
    integers = torch.tensor(
        [[p.top_k, p.seed, at] for p, at in zip(params, positions, strict=True)], dtype=torch.int64
    )
    floats, integers = upload(floats, device), upload(integers, device)
    sampled = [row for row, p in enumerate(params) if p.temperature > 0]
    return SamplingBatch(
        temperature=floats[:, 0],
        top_p=floats[:, 1],
        min_p=floats[:, 2],
        top_k=integers[:, 0],
        seeds=integers[:, 1],
        positions=integers[:, 2],
        greedy=not sampled,
        filtered=any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params),
        max_top_k=max((p.top_k for p in params), default=0),
        sampled=upload(torch.tensor(sampled), device) if 0 < len(sampled) < len(params) else None,
    )
