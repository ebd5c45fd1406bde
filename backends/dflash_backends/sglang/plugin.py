"""Names what SGLang is given. SGLang loads it through its own entry points; this is the list of it."""

from dflash_core.hookspecs import Providers, hookimpl


@hookimpl
def dflash_hosts() -> Providers:
    return {"sglang": "dflash_backends.sglang.entry:register"}
