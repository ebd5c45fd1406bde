"""Registers the `transformers` engine. Listing plugins imports neither torch nor transformers."""

from dflash_core.hookspecs import EngineProvider, hookimpl


@hookimpl
def dflash_engines() -> dict[str, EngineProvider | str]:
    return {"transformers": "dflash_backends.transformers.load:load_target"}
