"""What a verify forward of a model costs on this machine, by the number of its tokens."""

import hashlib
import json
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from dflash_backends.transformers.anatomy import Anatomy
from dflash_backends.transformers.state import TransformersState
from dflash_core.fastpath import FastPath
from dflash_core.fastpath.quiet import undisturbed
from dflash_core.fastpath.store import machine, recall, remember
from dflash_core.tree import chain

logger = logging.getLogger(__name__)

ROWS = (1, 8, 4, 16, 2, 32, 3, 6, 64, 12, 24, 5, 128, 7, 10, 48, 20, 96)
"""Row counts that are measured, those first that say most about the others."""

ENOUGH = 4
"""So many of them are measured whatever it takes."""

CONTEXT = 128
PASSES = 8
BUDGET = 8.0
"""Seconds after which nothing more is measured, so that a large model gets fewer passes and row counts."""


def forward_costs(parts: Anatomy, fast: FastPath, root: Path) -> dict[int, float]:
    """Rows -> seconds of a forward behind a short context; measured once and kept under `root`.

    Rows are the requests times their nodes; what they cost hardly depends on how they are shared out.
    Empty where the machine is too busy to measure anything.
    """
    key = _key(parts, fast)
    known = recall("forward", key, root)
    if _sound(known):
        return {int(rows): float(spent) for rows, spent in known.items()}
    logger.info("Measuring what a forward of %s costs by its tokens (once).", parts.name)
    costs = undisturbed(partial(measure, parts))
    if costs is None:
        logger.warning(
            "The machine is too busy to measure a forward, so schedules learn its cost as they go."
        )
        return {}
    remember("forward", key, {str(rows): spent for rows, spent in costs.items()}, root)
    return costs


@torch.no_grad()
def measure(parts: Anatomy) -> dict[int, float]:
    """Rows -> seconds, never falling: disturbances only add time, and fewer rows cost no more than more."""
    state = TransformersState(parts, ())
    state.prefill([index % len(parts.embedding) for index in range(CONTEXT)])
    samples: dict[int, list[Sequence[float]]] = {}
    started = perf_counter()
    for _ in range(PASSES):
        for rows in ROWS:
            if perf_counter() - started < BUDGET or len(samples) < ENOUGH:
                samples.setdefault(rows, []).append(_time_forward(parts, state, rows))
    kinds = [
        (kind, sum(parameter.numel() for parameter in layer.parameters()))
        for kind, layer in zip(parts.layer_types, parts.layers, strict=True)
    ]
    costs, least = {}, float("inf")
    for rows in sorted(samples, reverse=True):
        costs[rows] = least = min(least, _estimate(samples[rows], kinds))
    return costs


def _time_forward(parts: Anatomy, state: TransformersState, rows: int) -> list[float]:
    """Seconds of each decoder layer and, last, of everything else of one verify of `rows` nodes.

    Nothing is committed, so the next one starts from the same context.
    """
    tokens = torch.arange(rows, device=parts.device)[None] % len(parts.embedding)
    tree = chain(tokens, torch.tensor([rows], device=parts.device))
    with _timed(parts.layers) as seconds:
        begin = _now(parts.device)
        state.verify(tree)
        spent = _now(parts.device) - begin
    return [*seconds, spent - sum(seconds)]


def _estimate(samples: Sequence[Sequence[float]], kinds: Sequence[Hashable]) -> float:
    """Seconds of an undisturbed forward, put together from parts that are short enough to be undisturbed.

    Layers of one kind do the same work, so a low quantile of all their times stands for each of them.
    """
    *layers, rest = zip(*samples, strict=True)
    total: float = min(rest)
    for kind in dict.fromkeys(kinds):
        alike = [times for times, own in zip(layers, kinds, strict=True) if own == kind]
        total += len(alike) * low_quantile([spent for times in alike for spent in times])
    return total


def low_quantile(values: Sequence[float]) -> float:
    """The tenth percentile, or the least of fewer than ten."""
    return sorted(values)[len(values) // 10]


@contextmanager
def _timed(layers: Sequence[nn.Module]) -> Iterator[list[float]]:
    """Within it, each layer's forward appends its seconds, in the order in which they run."""
    seconds: list[float] = []

    def begin(module: nn.Module, args: object) -> None:
        seconds.append(-_now(_device(module)))

    def end(module: nn.Module, args: object, output: object) -> None:
        seconds[-1] += _now(_device(module))

    handles = [layer.register_forward_pre_hook(begin) for layer in layers]
    handles += [layer.register_forward_hook(end) for layer in layers]
    try:
        yield seconds
    finally:
        for handle in handles:
            handle.remove()


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def _key(parts: Anatomy, fast: FastPath) -> dict[str, Any]:
    layouts = None if fast.table is None else fast.table.to_json()["steps"]
    device = torch.cuda.get_device_name(parts.device) if parts.device.type == "cuda" else str(parts.device)
    return {
        **machine(),
        "model": type(parts.model).__name__,
        "parameters": sum(parameter.numel() for parameter in parts.model.parameters()),
        "layers": len(parts.layers),
        "dtype": str(parts.dtype),
        "device": device,
        "attention": parts.config._attn_implementation,
        "layouts": hashlib.sha256(json.dumps(layouts, sort_keys=True).encode()).hexdigest(),
        "rows": list(ROWS),
    }


def _sound(value: Any) -> bool:
    """Whether a kept value is what is kept here; the folder is open to anyone."""
    return (
        isinstance(value, Mapping)
        and len(value) >= ENOUGH
        and all(rows.isdigit() and isinstance(spent, float) for rows, spent in value.items())
    )
