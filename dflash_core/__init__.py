"""DFlash speculative decoding, independent of any engine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_core.comparison import compare as compare
    from dflash_core.generation import GenerateResult as GenerateResult
    from dflash_core.generation import generate as generate
    from dflash_core.loading import load_draft as load_draft
    from dflash_core.loading import load_target as load_target

_HOMES = {
    "GenerateResult": "dflash_core.generation",
    "compare": "dflash_core.comparison",
    "generate": "dflash_core.generation",
    "load_draft": "dflash_core.loading",
    "load_target": "dflash_core.loading",
}
"""Where public names live; they are imported when first used, since they bring torch along."""

__all__ = ["GenerateResult", "compare", "generate", "load_draft", "load_target"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
