"""SGLang's flags and ours, as the settings that everything else here has."""

from __future__ import annotations

import os
from typing import Any

from dflash_core.errors import SettingsError
from dflash_core.settings import Resolved, Settings, resolve

MEANINGLESS = (
    *("target", "engine", "dtype", "verification_batch_size", "max_new_tokens"),
    *("temperature", "top_k", "top_p", "min_p", "seed"),
)
"""Settings that a server has from SGLang, or its requests have."""


def server_settings(server_args: Any) -> Resolved:
    """Settings of a server that is about to start, before any model is loaded.

    Raises:
        SettingsError: flags contradict each other, or something needed is missing.
    """
    flags = _flags(server_args)
    found = resolve(flags)
    nodes = server_args.speculative_num_draft_tokens
    if nodes is not None:
        if found.settings.fixed_tree is not None:
            raise SettingsError(
                f"--speculative-num-draft-tokens is {nodes}, but tree_budget is "
                f"{found.settings.fixed_tree} ({found.origins['tree_budget']}), from which the number of "
                "nodes follows; leave the former out, or give --speculative-dflash-block-size."
            )
        if flags["block_size"] not in (None, nodes):
            raise SettingsError(
                f"--speculative-num-draft-tokens is {nodes} and --speculative-dflash-block-size is "
                f"{flags['block_size']}; they mean the same, so leave one of them out."
            )
        found = resolve({**flags, "block_size": nodes})
    return found


def worker_settings(server_args: Any, ranks: int = 1) -> Settings:
    """The same in a scheduler process, where SGLang's arguments have been completed by `server_settings`.

    Every rank drafts for itself, and all have to draft the same: layouts that each has measured for itself
    round differently, so with several ranks linear layers are torch's own.
    """
    settings = with_default_schedule(resolve(_flags(server_args)))
    return settings if ranks == 1 else settings.model_copy(update={"fast": "off"})


def with_default_schedule(resolved: Resolved) -> Settings:
    """A server verifies whole blocks unless told otherwise: "auto" learns from seconds that a GPU hides."""
    if resolved.origins["schedule"] == "default":
        return resolved.settings.model_copy(update={"schedule": "fixed"})
    return resolved.settings


def reserved_nodes(settings: Settings, block_size: int) -> int:
    """The most nodes a request that one forward verifies, the anchor included."""
    if settings.fixed_tree is not None:
        return settings.fixed_tree + 1
    if isinstance(settings.verify_length, int):
        return min(settings.verify_length, block_size)
    return block_size


def export(**settings: Any) -> None:
    """Set settings for the SGLang processes that this one starts, for instance before `sglang.Engine(...)`.

    Raises:
        SettingsError: there is no such setting, or the value is not allowed.
    """
    resolve(settings)
    for name, value in settings.items():
        if value is not None:
            os.environ[f"DFLASH_{name.upper()}"] = (
                str(value).lower() if isinstance(value, bool) else str(value)
            )


def _flags(server_args: Any) -> dict[str, Any]:
    """SGLang's flags under the names of our settings."""
    return {
        "draft": server_args.speculative_draft_model_path,
        "block_size": server_args.speculative_dflash_block_size,
        "draft_window": server_args.speculative_draft_window_size,
    }
