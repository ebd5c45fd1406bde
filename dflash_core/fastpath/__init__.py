"""Linear layers laid out for few rows on this machine's CPU."""

from dflash_core.fastpath.calibrate import calibrate_layouts
from dflash_core.fastpath.enable import Fast, FastPath, enable_fast_path
from dflash_core.fastpath.module import FastLinear, apply_fast_path
from dflash_core.fastpath.table import LayoutTable

__all__ = [
    "Fast",
    "FastLinear",
    "FastPath",
    "LayoutTable",
    "apply_fast_path",
    "calibrate_layouts",
    "enable_fast_path",
]
