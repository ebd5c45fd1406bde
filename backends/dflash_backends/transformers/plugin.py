"""Registers the `transformers` engine and its tokenizers. Listing imports neither torch nor transformers."""

from dflash_core.hookspecs import EngineProvider, TokenizerProvider, hookimpl


@hookimpl
def dflash_engines() -> dict[str, EngineProvider | str]:
    return {"transformers": "dflash_backends.transformers.load:load_target"}


@hookimpl
def dflash_tokenizers() -> dict[str, TokenizerProvider | str]:
    return {"transformers": "dflash_backends.transformers.tokenizer:load_tokenizer"}
