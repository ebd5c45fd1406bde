"""Torch versions of what SGLang does to its slot table with Triton kernels."""

from typing import Any

import torch
from torch import Tensor


def window_slots(
    *, req_pool_indices: Tensor, req_to_token: Tensor, start_offset: Tensor, draft_token_num: int, **_: Any
) -> Tensor:
    """The slots of each request's next `draft_token_num` positions, [B * draft_token_num] int64.

    Args:
        req_pool_indices: [B], rows of the table. req_to_token: [rows, positions], the table.
        start_offset: [B], the first position of each request.
    """
    columns = start_offset.long()[:, None] + torch.arange(draft_token_num)
    return req_to_token[req_pool_indices.long()[:, None], columns].flatten().long()


def assign_slots(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    batch_size: int,
) -> None:
    """Write newly allocated slots into the table: request b's go to positions start to end - 1."""
    begin = 0
    ranges = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, stop in ranges:
        count = stop - start
        req_to_token[row, start:stop] = out_cache_loc[begin : begin + count].to(req_to_token.dtype)
        begin += count
