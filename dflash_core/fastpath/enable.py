"""Measures once a machine and a model, then applies what was found."""

import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from torch import nn

from dflash_core.errors import SettingsError
from dflash_core.fastpath.calibrate import calibrate_layouts
from dflash_core.fastpath.choice import ROWS
from dflash_core.fastpath.module import apply_fast_path, fast_candidates
from dflash_core.fastpath.narrow import narrow_shapes
from dflash_core.fastpath.quiet import undisturbed
from dflash_core.fastpath.store import machine, recall, remember
from dflash_core.fastpath.table import LayoutTable
from dflash_kernels.few_row_linear.layouts import available
from dflash_kernels.folders import cache_root

logger = logging.getLogger(__name__)

Fast = Literal["auto", "off"]
"""How linear layers are computed: "auto" in the layouts that are fastest here, "off" as torch does."""

BUSY = (
    "The machine is too busy to measure layouts, so linear layers stay torch's own, and slower, this time. "
    "Load the model once more when it is idle."
)


@dataclass(frozen=True)
class FastPath:
    """What was done to a module.

    Attributes:
        mode: what was asked for.
        layers: linear layers that were replaced.
        table: what was measured; `None` when nothing was.
        reason: why nothing was done.
    """

    mode: Fast = "off"
    layers: int = 0
    table: LayoutTable | None = None
    reason: str | None = None


def enable_fast_path(
    module: nn.Module, fast: Fast = "auto", cache_dir: Path | None = None, frozen: bool = False
) -> FastPath:
    """Compute the module's few-row products in the layouts that are fastest on this machine.

    Results stay equal within float32 rounding. The first call for a model on a machine measures for some ten
    seconds and keeps what it found in the cache folder. Layers that are not float32 on the CPU stay as they
    are.

    Args:
        module: a target's or a draft's network.
        cache_dir: where measurements are kept; `cache_root()` when `None`.
        frozen: nobody will change the weights. Those that bfloat16 holds exactly are then read as that, from
            a copy that would not follow, say, an adapter merged into `weight.data`.

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
    shapes = Counter(f"{weight.shape[0]}x{weight.shape[1]}" for weight in weights)
    key = {**machine(), "shapes": dict(sorted(shapes.items())), "rows": list(ROWS)}
    key["layouts"] = list(available())
    narrow = narrow_shapes(weights) if frozen else frozenset()
    key["narrow"] = sorted(narrow)
    root = cache_dir or cache_root()
    table = _known(key, root)
    if table is None:
        logger.info("Measuring which layout of linear layers is fastest on this machine (once).")
        table = undisturbed(partial(calibrate_layouts, weights, narrow))
        if table is None:
            logger.warning("%s", BUSY)
            return FastPath(fast, reason=BUSY)
        remember("layouts", key, table.to_json(), root)
    layers = apply_fast_path(module, table, narrow)
    return FastPath(fast, layers, table)


def _known(key: dict[str, object], root: Path) -> LayoutTable | None:
    value = recall("layouts", key, root)
    if value is None:
        return None
    try:
        return LayoutTable.from_json(value)
    except ValueError as error:
        logger.warning("A kept table of layouts is of no use and is measured anew: %s", error)
        return None
