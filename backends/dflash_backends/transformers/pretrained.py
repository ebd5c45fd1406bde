"""Reads models and tokenizers from local files. Nothing reaches for a network or runs a folder's code."""

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants as hub
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as transformers_logging

from dflash_core.errors import UnsupportedError

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
FAULTS = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError)
"""What transformers raises for files that it cannot read or a class that it does not know."""


def read_folder(path: str, dtype: str, attention: str | None) -> tuple[PreTrainedModel, Tokenizer | None]:
    """A model, and its tokenizer where there is one, from a folder or an id in the local Hugging Face cache.

    Args:
        attention: transformers' `attn_implementation`; its own choice for the class when `None`.

    Raises:
        UnsupportedError: it cannot be loaded.
    """
    folder = Path(path)
    is_folder = bool(path) and folder.is_dir()
    if is_folder and not (folder / "config.json").is_file():
        raise UnsupportedError(f"{path} has no config.json, so it is not a folder of a transformers model.")
    if not is_folder and not _is_cached(path):
        raise UnsupportedError(
            f"{path!r} is neither a folder nor a model in the local Hugging Face cache, and nothing is "
            "downloaded. Give a folder with config.json and safetensors, or a .gguf file."
        )
    with offline():
        model = _read_model(path, path, {"dtype": torch_dtype(dtype), "attn_implementation": attention})
        has_tokenizer = not is_folder or any((folder / name).is_file() for name in TOKENIZER_FILES)
        return model, _read_tokenizer(path, path, {}) if has_tokenizer else None


def read_gguf(path: Path, dtype: str, attention: str | None = None) -> tuple[PreTrainedModel, Tokenizer]:
    """A model and its tokenizer from a GGUF file, with the quantised weights turned into `dtype`.

    Raises:
        UnsupportedError: it cannot be loaded.
    """
    if not path.is_file():
        raise UnsupportedError(f"{path} is not a file.")
    where = {"gguf_file": path.name}
    with offline():
        tokenizer = _read_tokenizer(str(path.parent), str(path), where)
        # Without dequantize transformers keeps the blocks packed, and such a model cannot be saved.
        wanted = {"dtype": torch_dtype(dtype), "quantization_config": GgufConfig(dequantize=True)}
        model = _read_model(
            str(path.parent), str(path), {**where, **wanted, "attn_implementation": attention}
        )
    settings = model.generation_config
    if settings.eos_token_id is None:
        settings.eos_token_id = tokenizer.eos_token_id
    if settings.pad_token_id is None:
        settings.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def read_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a folder, a .gguf file or an id in the local Hugging Face cache, without weights.

    Raises:
        UnsupportedError: it cannot be loaded.
    """
    file = Path(path)
    if path.endswith(".gguf"):
        if not file.is_file():
            raise UnsupportedError(f"{path} is not a file.")
        with offline():
            return _read_tokenizer(str(file.parent), path, {"gguf_file": file.name})
    if not file.is_dir() and not _is_cached(path):
        raise UnsupportedError(
            f"{path!r} is neither a folder nor a model in the local Hugging Face cache, and nothing is "
            "downloaded. Give a folder with a tokenizer, or a .gguf file."
        )
    with offline():
        return _read_tokenizer(path, path, {})


def torch_dtype(name: str) -> torch.dtype:
    """Raises UnsupportedError for a name that is not one of `DTYPES`."""
    if name not in DTYPES:
        raise UnsupportedError(f"dtype is {name!r}; it must be one of: {', '.join(DTYPES)}.")
    return DTYPES[name]


@contextmanager
def offline() -> Iterator[None]:
    """Within it, no request of Hugging Face's libraries leaves this process, and they report nothing."""
    was_offline, had_bars = hub.HF_HUB_OFFLINE, transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    hub.HF_HUB_OFFLINE = True
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = was_offline
        transformers_logging.set_verbosity(verbosity)
        if had_bars:
            transformers_logging.enable_progress_bar()


def _is_cached(path: str) -> bool:
    try:
        return isinstance(try_to_load_from_cache(path, "config.json"), str)
    except ValueError:
        return False  # no id of a model could look like this


def _read_model(source: str, name: str, options: dict[str, Any]) -> PreTrainedModel:
    given = {key: value for key, value in options.items() if value is not None}
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            source, output_loading_info=True, ignore_mismatched_sizes=True, **LOCAL, **given
        )
    except FAULTS as error:
        raise UnsupportedError(
            f"{name} cannot be loaded as a decoder-only model: {_sentence(error)}"
        ) from error
    lost = [*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])]
    if lost:
        raise UnsupportedError(
            f"{name} lacks weights of {type(model).__name__}, or has them in another shape: {_few(lost)}."
        )
    if report["unexpected_keys"]:
        logger.warning(
            "%s has weights that its model does not use: %s.", name, _few(report["unexpected_keys"])
        )
    return model


def _read_tokenizer(source: str, name: str, options: dict[str, Any]) -> Tokenizer:
    try:
        return AutoTokenizer.from_pretrained(source, **LOCAL, **options)
    except FAULTS as error:
        raise UnsupportedError(f"The tokenizer of {name} cannot be loaded: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    """The first line of a library's message, which is often a paragraph."""
    if isinstance(error, json.JSONDecodeError):
        return f"a JSON file is malformed ({error})."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.:')}." if lines else f"{type(error).__name__}."


def _few(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first
