"""Registers the `transformers` engine and its tokenizers. Listing imports neither torch nor transformers."""

from dflash_core.hookspecs import EngineProvider, SystemProvider, TokenizerProvider, hookimpl


@hookimpl
def dflash_engines() -> dict[str, EngineProvider | str]:
    return {"transformers": "dflash_backends.transformers.load:load_target"}


@hookimpl
def dflash_tokenizers() -> dict[str, TokenizerProvider | str]:
    return {"transformers": "dflash_backends.transformers.tokenizer:load_tokenizer"}


@hookimpl
def dflash_systems() -> dict[str, SystemProvider | str]:
    return {
        "prompt-lookup": "dflash_backends.transformers.bench.prompt_lookup:prompt_lookup",
        "dflash-0.1.0": "dflash_backends.transformers.bench.dflash_loop:dflash_loop",
    }
