"""Measures once a machine and a model, then applies what was found."""

import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from torch import nn

from dflash_core.errors import SettingsError
from dflash_core.fastpath.calibrate import calibrate_layouts, candidates
from dflash_core.fastpath.choice import ROWS
from dflash_core.fastpath.module import FastLinear, apply_fast_path, fast_candidates
from dflash_core.fastpath.quiet import undisturbed
from dflash_core.fastpath.store import cache_root, machine, recall, remember
from dflash_core.fastpath.table import LayoutTable

logger = logging.getLogger(__name__)

Fast = Literal["auto", "lean", "off"]
"""How linear layers are computed: "auto" may keep packed copies of the weights (up to twice their size) where
that fits into a quarter of the free memory, "lean" keeps none, "off" leaves every layer as it is."""

SHARE_OF_MEMORY = 0.25
LARGEST_COPY = 2
"""MKL's packed copy, in sizes of the weight."""

BUSY = "The machine is too busy to measure layouts, so linear layers stay torch's own this time."


@dataclass(frozen=True)
class FastPath:
    """What was done to a module.

    Attributes:
        mode: what was asked for.
        layers: linear layers that were replaced.
        extra_bytes: memory of their packed copies.
        table: what was measured; `None` when nothing was.
        reason: why there are no packed copies although "auto" may keep them, or why nothing was done.
    """

    mode: Fast = "off"
    layers: int = 0
    extra_bytes: int = 0
    table: LayoutTable | None = None
    reason: str | None = None


def enable_fast_path(module: nn.Module, fast: Fast = "auto", cache_dir: Path | None = None) -> FastPath:
    """Compute the module's few-row products in the layouts that are fastest on this machine.

    Results stay equal within float32 rounding. The first call for a model on a machine measures for some ten
    seconds and keeps what it found in the cache folder. Layers that are not float32 on the CPU stay as they
    are.

    Args:
        module: a target's or a draft's network.
        cache_dir: where measurements are kept; `cache_root()` when `None`.

    Raises:
        SettingsError: `fast` is not one of its values.
    """
    if fast not in get_args(Fast):
        raise SettingsError(f"fast is {fast!r}; it must be one of: {', '.join(get_args(Fast))}.")
    if fast == "off":
        return FastPath(fast, reason="it is off")
    weights = list({id(linear.weight): linear.weight for _, _, linear in fast_candidates(module)}.values())
    if not weights:
        return FastPath(fast, reason="no plain linear layer is float32 on the CPU")
    reason = None
    if fast == "auto":
        reason = _no_room(LARGEST_COPY * sum(weight.numel() * weight.element_size() for weight in weights))
    packed = fast == "auto" and reason is None
    shapes = Counter(f"{weight.shape[0]}x{weight.shape[1]}" for weight in weights)
    key = {**machine(), "shapes": dict(sorted(shapes.items())), "rows": list(ROWS)}
    key["layouts"] = [str(layout) for layout in candidates(packed)]
    root = cache_dir or cache_root()
    table = _known(key, root)
    if table is None:
        logger.info("Measuring which layout of linear layers is fastest on this machine (once).")
        table = undisturbed(partial(calibrate_layouts, weights, packed))
        if table is None:
            logger.warning("%s", BUSY)
            return FastPath(fast, reason=BUSY)
        remember("layouts", key, table.to_json(), root)
    layers = apply_fast_path(module, table)
    fast_layers = {one for one in module.modules() if isinstance(one, FastLinear)}
    return FastPath(fast, layers, sum(layer.extra_bytes for layer in fast_layers), table, reason)


def _known(key: dict[str, object], root: Path) -> LayoutTable | None:
    value = recall("layouts", key, root)
    if value is None:
        return None
    try:
        return LayoutTable.from_json(value)
    except ValueError as error:
        logger.warning("A kept table of layouts is of no use and is measured anew: %s", error)
        return None


def _no_room(needed: int) -> str | None:
    """Why a copy of so many bytes is too large, or `None` when it is not."""
    free = free_memory()
    if free is None:
        return "it is not known how much memory is free, so no packed copies are kept"
    if needed > SHARE_OF_MEMORY * free:
        return (
            f"packed copies of up to {needed / 2**30:.1f} GiB are more than a quarter of the free memory "
            f"({free / 2**30:.1f} GiB), so none are kept"
        )
    return None


def free_memory() -> int | None:
    """Bytes that can be had without swapping; `None` where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
