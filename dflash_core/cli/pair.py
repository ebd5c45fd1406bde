"""A target and a draft as the settings name them, loaded for a command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.cli import output
from dflash_core.drafter.base import Drafter
from dflash_core.errors import RequestError, SettingsError
from dflash_core.loading import load_draft, load_target
from dflash_core.request import Detokenize
from dflash_core.settings import Resolved, Settings, resolve
from dflash_core.target import TargetModel


@dataclass(frozen=True)
class Pair:
    """What a command works with; `draft` is `None` when the settings switch block diffusion off."""

    target: TargetModel
    draft: Drafter | None
    settings: Settings

    def options(self) -> dict[str, Any]:
        """The settings that are arguments of `generate`."""
        chosen = self.settings
        return {
            "max_new_tokens": chosen.max_new_tokens,
            "temperature": chosen.temperature,
            "top_k": chosen.top_k,
            "top_p": chosen.top_p,
            "min_p": chosen.min_p,
            "seed": chosen.seed,
            "block_size": chosen.block_size,
            "verify_length": chosen.verify_length,
            "tree_budget": chosen.tree_budget,
            "verifier": chosen.verifier,
            "rollback": chosen.rollback,
            "max_batch": chosen.verification_batch_size,
        }

    @property
    def detokenize(self) -> Detokenize:
        """Text of token ids; without a tokenizer the ids themselves, spelled out."""
        given: Detokenize | None = getattr(self.target, "detokenize", None)
        return given or (lambda ids: " ".join(map(str, ids)) + " ")

    def encode(self, text: str, raw: bool) -> list[int]:
        """Token ids of a prompt, through the chat template unless `raw`.

        Raises:
            RequestError: the target has no tokenizer, or no chat template.
        """
        name = "encode" if raw else "encode_chat"
        encode = getattr(self.target, name, None)
        if encode is None:
            raise RequestError(
                f"{self.target.info.name} has no tokenizer; give token ids from Python instead."
            )
        ids: list[int] = encode(text if raw else [{"role": "user", "content": text}])
        return ids


def number_or_word(text: str | None) -> int | str | None:
    """A flag that may be either; which words and numbers it may be, the setting says."""
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,18}", text) else text


def resolve_flags(flags: Mapping[str, Any], config: Path | None, demo_pair: bool) -> Resolved:
    """Settings of a command from its flags; `--demo-pair` stands for a target and a draft.

    Raises:
        SettingsError: also when `--demo-pair` meets a target or draft of the user's.
    """
    flags = dict(flags)
    for name in ("verify_length", "tree_budget", "draft_vocab"):
        if name in flags:
            flags[name] = number_or_word(flags[name])
    if demo_pair:
        for name in ("target", "draft"):
            if flags.get(name) is not None:
                raise SettingsError(f"--demo-pair stands for a target and a draft; leave --{name} out.")
        from dflash_core.demo import TARGET, draft_folder, draft_vocab_file

        flags |= {"target": TARGET, "draft": str(draft_folder())}
        if flags.get("draft_vocab") is None:
            flags["draft_vocab"] = str(draft_vocab_file())
    return resolve(flags, config=config)


def load_pair(resolved: Resolved, needs_draft: bool = False, **options: Any) -> Pair:
    """Load what the settings name.

    Args:
        needs_draft: whether the command makes no sense without one.
        options: further ones of the engine, e.g. `calibrate=False`.

    Raises:
        SettingsError: something is missing, or contradicts what the command needs.
    """
    settings = resolved.settings
    path = resolved.require("target")
    if not settings.block_diffusion and needs_draft:
        raise SettingsError(
            f"block_diffusion is off ({resolved.origins['block_diffusion']}), so there is nothing to compare."
        )
    draft_path = resolved.require("draft") if settings.block_diffusion else None
    output.note(f"Loading {path} ...")
    target = load_target(
        path, settings.engine, settings.dtype, fast=settings.fast, cache_dir=settings.cache_dir, **options
    )
    if draft_path is None:
        return Pair(target, None, settings)
    chosen = {
        name: getattr(settings, name)
        for name in ("draft_window", "draft_vocab", "proposal")
        if resolved.origins[name] != "default"
    }
    return Pair(target, load_draft(draft_path, target, settings.drafter, **chosen), settings)
