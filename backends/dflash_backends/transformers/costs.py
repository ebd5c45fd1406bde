"""What a verify forward of a model costs on this machine, by the number of its tokens."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from dflash_backends.transformers.anatomy import Anatomy
from dflash_backends.transformers.state import TransformersState
from dflash_core.fastpath import FastPath
from dflash_core.fastpath.store import machine, recall, remember
from dflash_core.tree import TokenTree, chain

logger = logging.getLogger(__name__)

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)
CONTEXT = 128
PASSES = 8
BUDGET = 8.0
"""Seconds after which nothing more is measured, so that a large model gets fewer passes and row counts."""

ENOUGH = 4
"""Row counts that are measured whatever it takes."""


def forward_costs(parts: Anatomy, fast: FastPath, root: Path) -> dict[int, float]:
    """Rows -> seconds of a forward behind a short context; measured once and kept under `root`.

    Rows are the requests times their nodes; what they cost hardly depends on how they are shared out.
    """
    key = _key(parts, fast)
    known = recall("forward", key, root)
    if _sound(known):
        return {int(rows): float(spent) for rows, spent in known.items()}
    logger.info("Measuring what a forward of %s costs by its tokens (once).", parts.name)
    costs = _measure(parts)
    remember("forward", key, {str(rows): spent for rows, spent in costs.items()}, root)
    return costs


@torch.no_grad()
def _measure(parts: Anatomy) -> dict[int, float]:
    state = TransformersState(parts, ())
    vocabulary = len(parts.embedding)
    state.prefill([index % vocabulary for index in range(CONTEXT)])
    started = perf_counter()
    costs: dict[int, float] = {}
    for _ in range(PASSES):
        for rows in ROWS:
            if perf_counter() - started > BUDGET and len(costs) >= ENOUGH:
                break
            spent = _seconds(state, _rows_of(rows, vocabulary, parts.device))
            costs[rows] = min(spent, costs.get(rows, spent))
    # Disturbances only ever add time, and no forward costs more than one of more rows.
    least = float("inf")
    for rows in sorted(costs, reverse=True):
        costs[rows] = least = min(least, costs[rows])
    return costs


def _rows_of(rows: int, vocabulary: int, device: torch.device) -> TokenTree:
    tokens = torch.arange(rows, device=device)[None] % vocabulary
    return chain(tokens, torch.tensor([rows], device=device))


def _seconds(state: TransformersState, tree: TokenTree) -> float:
    """Of one verify; nothing is committed, so the next one starts from the same context."""
    begin = perf_counter()
    logits = state.verify(tree).logits
    if logits.is_cuda:
        torch.cuda.synchronize(logits.device)
    return perf_counter() - begin


def _key(parts: Anatomy, fast: FastPath) -> dict[str, Any]:
    layouts = None if fast.table is None else fast.table.to_json()["steps"]
    digest = hashlib.sha256(json.dumps(layouts, sort_keys=True).encode()).hexdigest()
    device = torch.cuda.get_device_name(parts.device) if parts.device.type == "cuda" else str(parts.device)
    return {
        **machine(),
        "model": type(parts.model).__name__,
        "parameters": sum(parameter.numel() for parameter in parts.model.parameters()),
        "layers": len(parts.layers),
        "dtype": str(parts.dtype),
        "device": device,
        "attention": parts.config._attn_implementation,
        "layouts": digest,
        "rows": list(ROWS),
    }


def _sound(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) >= ENOUGH
        and all(rows.isdigit() and isinstance(spent, float) for rows, spent in value.items())
    )
