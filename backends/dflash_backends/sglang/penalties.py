"""What changes one request's logits by what it has produced: exact at every node of a tree."""

from collections.abc import Callable, Mapping
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
        if produced.shape[1] < least:
            own = [token for token in stops if token < scores.shape[1]]
            # what would leave no token at all is left undone: the request asks for the impossible
            if len(own) < scores.shape[1]:
                scores[:, own] = float("-inf")
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


def custom(processor: Callable[..., Tensor], params: Mapping[str, Any] | None) -> Penalty:
    """A custom logit processor of SGLang's, which may ask the request what it has produced so far."""

    def process(produced: Tensor, scores: Tensor) -> Tensor:
        given = [params and ahead(params, row) for row in produced.tolist()]
        return processor(scores, given)

    return process


def ahead(params: Mapping[str, Any], produced: list[int]) -> dict[str, Any]:
    """The processor's parameters at a node, where the request is as many tokens further."""
    if REQUEST not in params:
        return dict(params)
    return {**params, REQUEST: Ahead(params[REQUEST], produced)}


class Ahead:
    """A request as it would be once it had produced the tokens that lead to a node."""

    def __init__(self, request: Any, output_ids: list[int]) -> None:
        self.output_ids = request.output_ids[:0]  # a list, or an array, which takes no lists beside it
        self.output_ids.extend(output_ids)
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


REQUEST = "__req__"
"""Where SGLang keeps the request among a processor's parameters."""
