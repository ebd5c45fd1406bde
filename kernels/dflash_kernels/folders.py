"""Where things are kept between runs."""

import os
from pathlib import Path


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/dflash-core`, or `~/.cache/dflash-core`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash-core"


def cache_root() -> Path:
    """`$DFLASH_CACHE_DIR`, else the user's cache: converted models, measurements, compiled routines."""
    chosen = os.environ.get("DFLASH_CACHE_DIR")
    return Path(chosen) if chosen else user_cache()
