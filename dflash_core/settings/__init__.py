"""Everything that can be set: one model, its sources in order, and who set what."""

from dflash_core.settings.model import Settings
from dflash_core.settings.resolve import Resolved, resolve

__all__ = ["Resolved", "Settings", "resolve"]
