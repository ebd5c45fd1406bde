"""SGLang's penalties for one request, computed from what it has produced: exact at every node of a tree."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Penalty = Callable[[Tensor, Tensor], Tensor]


def penalties_of(request: Any) -> tuple[Penalty, ...]:
    """What the request asks for, in SGLang's order: additive ones first, then the repetition penalty."""
    params = request.sampling_params
    wanted: list[Penalty] = []
    if params.frequency_penalty or params.presence_penalty:
        wanted.append(counted(params.frequency_penalty, params.presence_penalty))
    if params.min_new_tokens > len(request.output_ids):
        wanted.append(not_before(params.min_new_tokens, stop_tokens(request)))
    if params.repetition_penalty != 1.0:
        wanted.append(repeated(params.repetition_penalty))
    return tuple(wanted)


def counted(frequency: float, presence: float) -> Penalty:
    """Subtract `frequency` for every time that a token was produced, and `presence` once."""

    def penalize(produced: Tensor, scores: Tensor) -> Tensor:
        counts = torch.zeros_like(scores).scatter_add_(
            1, produced, torch.ones_like(produced, dtype=scores.dtype)
        )
        return scores - frequency * counts - presence * (counts > 0)

    return penalize


def not_before(least: int, stops: list[int]) -> Penalty:
    """No stop token before `least` tokens have been produced."""

    def penalize(produced: Tensor, scores: Tensor) -> Tensor:
        if produced.shape[1] < least and stops:
            scores[:, stops] = float("-inf")
        return scores

    return penalize


def repeated(factor: float) -> Penalty:
    """Divide positive scores of produced tokens by `factor`, multiply negative ones."""

    def penalize(produced: Tensor, scores: Tensor) -> Tensor:
        own = scores.gather(1, produced)
        return scores.scatter(1, produced, torch.where(own < 0, own * factor, own / factor))

    return penalize


def stop_tokens(request: Any) -> list[int]:
    """All tokens that would end the request."""
    tokenizer = request.tokenizer
    found = set(request.sampling_params.stop_token_ids or ()) | set(request.eos_token_ids or ())
    if tokenizer is not None:
        found |= set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
        found |= {tokenizer.eos_token_id}
    return sorted(token for token in found if token is not None)
