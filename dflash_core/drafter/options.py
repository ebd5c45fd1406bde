"""Options of the block drafter, from how a person writes them to what the code needs."""

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from dflash_core.errors import SettingsError
from dflash_core.spec import DraftSpec

DraftVocab = int | str | PathLike[str] | Sequence[int] | Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def as_dtype(option: str, value: str | torch.dtype | None, default: torch.dtype) -> torch.dtype:
    """Raises SettingsError for anything but the three floating dtypes."""
    for name, dtype in DTYPES.items():
        if value in (name, dtype) or (value is None and dtype == default):
            return dtype
    raise SettingsError(f"{option} is {value or default}; it must be one of {', '.join(DTYPES)}.")


def samples(proposal: str, spec: DraftSpec) -> bool:
    """Whether drafts are sampled at temperature above 0; raises SettingsError for an unknown mode."""
    modes = {"auto": spec.head != "independent", "argmax": False, "sample": True}
    if proposal not in modes:
        raise SettingsError(f"proposal is {proposal!r}; it must be one of {', '.join(modes)}.")
    return modes[proposal]


def as_token_ids(value: DraftVocab, vocab_size: int) -> Tensor:
    """Target ids that may be drafted: the n lowest of them, or those listed, in a file of JSON if need be.

    Returns:
        [n] int64, ascending, none twice.

    Raises:
        SettingsError: the file cannot be read, none are left, or one is outside the vocabulary.
    """
    if isinstance(value, str | PathLike):
        return as_token_ids(_listed(Path(value)), vocab_size)
    if isinstance(value, int):
        if not 1 <= value <= vocab_size:
            raise SettingsError(f"draft_vocab is {value}; it must be from 1 to {vocab_size}, the vocabulary.")
        return torch.arange(value)
    ids: Tensor = torch.unique(torch.as_tensor(value, dtype=torch.int64))
    if not len(ids) or ids[0] < 0 or ids[-1] >= vocab_size:
        raise SettingsError(f"draft_vocab must list token ids from 0 to {vocab_size - 1}, at least one.")
    return ids


def _listed(path: Path) -> list[int]:
    try:
        ids = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"draft_vocab is the file {path}, which cannot be read: {error}.") from None
    if not isinstance(ids, list) or not all(type(one) is int and abs(one) < 2**31 for one in ids):
        raise SettingsError(f"draft_vocab is the file {path}; it must hold a JSON list of token ids.")
    return ids
