"""SGLang's requests in the core's terms: sampling settings, seeds, and what a schedule may know."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import torch

from dflash_core.sampling import SamplingBatch, SamplingParams, sampling_batch
from dflash_core.schedule.base import RequestView
from dflash_core.settings import Settings

GREEDY_TOP_K = 1
"""SGLang turns temperature 0 into top-k 1."""

NO_TOP_K = 1 << 30


def sampling_of(request: Any, server_seed: int) -> SamplingParams:
    """Settings of one SGLang request."""
    params = request.sampling_params
    seed = seed_of(params.sampling_seed, request.rid, server_seed)
    if params.top_k == GREEDY_TOP_K or params.temperature == 0:
        return SamplingParams(seed=seed)
    return SamplingParams(
        temperature=float(params.temperature),
        top_k=0 if params.top_k < 0 or params.top_k >= NO_TOP_K else int(params.top_k),
        top_p=float(params.top_p),
        min_p=float(params.min_p),
        seed=seed,
    )


def seed_of(given: int | None, request_id: str, server_seed: int) -> int:
    """The request's own seed, else one of its id and the server's seed: the same on all ranks."""
    if given is not None:
        return int(given) % 2**63
    digest = blake2b(f"{server_seed}:{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**63


def batch_sampling(
    requests: Sequence[Any], lengths: Sequence[int], server_seed: int, device: torch.device
) -> SamplingBatch:
    """Settings of a batch whose anchors are at positions `lengths`."""
    return sampling_batch([sampling_of(request, server_seed) for request in requests], lengths, device)


def view_of(request: Any, length: int, block_size: int, settings: Settings) -> RequestView:
    """What a schedule is told of a request of `length` committed positions."""
    left = request.sampling_params.max_new_tokens - len(request.output_ids)
    return RequestView(
        id=hash(request.rid),
        context=length,
        remaining=max(int(left), 1),
        block_size=block_size,
        verify_length=settings.verify_length,
        tree_budget=settings.fixed_tree,
    )
