"""The first token of an answer, drawn with the same noise as all others: a seed gives one text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dflash_backends.sglang.requests import sampling_of
from dflash_core.sampling import sampling_batch
from dflash_core.verify.choice import target_choice


class FirstToken:
    """Takes the place of the last step of SGLang's sampler, which only prompts go through here."""

    def __init__(self, server_seed: int) -> None:
        self.requests: Sequence[Any] = ()
        self._seed = server_seed

    def install(self, sampler: Any) -> None:
        """Have SGLang's sampler draw with us; what it does before and after stays its own."""
        sampler._sample_from_probs = self.draw

    def draw(
        self, probs: Tensor, sampling_info: Any, positions: Tensor, simple_sampling_case: bool
    ) -> tuple[Tensor, None]:
        """One token a request.

        Args:
            probs: [B, V], temperatures applied, filters not. positions: [B] of the prompts' last tokens.
        """
        params = [sampling_of(request, self._seed) for request in self.requests]
        flat = [replace(one, temperature=1.0) if one.temperature > 0 else one for one in params]
        sampling = sampling_batch(flat, positions.tolist(), probs.device)
        depths = torch.zeros(len(probs), 1, dtype=torch.int64, device=probs.device)
        tokens = target_choice(probs.log()[:, None], depths, sampling)[:, 0]
        return tokens.to(torch.int32), None
