"""`load_target()` and `load_draft()`."""

from os import PathLike
from typing import Any, cast

from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.checkpoint.pair import check_pair
from dflash_core.drafter.base import Drafter
from dflash_core.plugins import provider
from dflash_core.target import TargetModel


def load_target(
    path: str | PathLike[str], engine: str = "transformers", dtype: str = "float32", **options: Any
) -> TargetModel:
    """Load a target model.

    Args:
        path: a local folder (or file) that the engine reads; nothing is fetched.
        engine: name of a registered engine.
        dtype: "float32", "bfloat16" or "float16".
        options: the engine's own, e.g. `fast="off"` of the transformers engine.

    Raises:
        SettingsError: there is no engine of that name.
        DFlashError: the engine cannot load it; the message says why.
    """
    return cast(TargetModel, provider("engines", engine)(path, dtype=dtype, **options))


def load_draft(
    path: str | PathLike[str],
    target: TargetModel,
    drafter: str = "block",
    *,
    allow_rope_mismatch: bool = False,
    **options: Any,
) -> Drafter:
    """Load a draft checkpoint of any known dialect and check that it fits the target.

    Args:
        path: a local folder with config.json and safetensors.
        drafter: name of a registered drafter kind.
        allow_rope_mismatch: accept a draft that was trained with another RoPE than the target's.
        options: the drafter's own, e.g. `draft_window=256`, `draft_vocab=16384`, `proposal="argmax"`.

    Raises:
        CheckpointError: it cannot be read; the message names the file and the key.
        PairError: it does not fit the target.
    """
    checkpoint = load_checkpoint(path)
    check_pair(checkpoint.spec, target.info, allow_rope_mismatch=allow_rope_mismatch)
    return cast(Drafter, provider("drafters", drafter)(checkpoint, target, **options))
