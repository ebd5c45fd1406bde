"""The hooks through which everything swappable is registered, ours and a stranger's alike.

A plugin is a module (or object) named by an entry point in the group `dflash_core`. Each hook below answers
with a mapping from a name to a provider. A provider is either the object itself or a string
"package.module:attribute" that is imported when it is first used, so that a plugin costs nothing to list.
Two providers of one name are an error that names both plugins. Called once, at the first use of a registry.
"""

from collections.abc import Mapping
from typing import Any

import pluggy

PROJECT = "dflash_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Providers = Mapping[str, Any]


@hookspec
def dflash_dialects() -> Providers:  # type: ignore[empty-body]
    """Checkpoint layouts: name -> `dflash_core.checkpoint.base.Dialect`."""


@hookspec
def dflash_drafters() -> Providers:  # type: ignore[empty-body]
    """Drafter kinds: name -> callable `(checkpoint, target, **options) -> Drafter`."""


@hookspec
def dflash_verifiers() -> Providers:  # type: ignore[empty-body]
    """Verifiers: name -> callable `() -> dflash_core.verify.base.Verifier`."""


@hookspec
def dflash_rollbacks() -> Providers:  # type: ignore[empty-body]
    """Rollback policies: name -> callable `() -> dflash_core.rollback.base.RollbackPolicy`."""


@hookspec
def dflash_schedules() -> Providers:  # type: ignore[empty-body]
    """Schedules: name -> callable `(target, drafter, **options) -> dflash_core.schedule.base.Schedule`."""


@hookspec
def dflash_engines() -> Providers:  # type: ignore[empty-body]
    """Engines that the decoder can drive: name -> callable `(path, *, dtype, **options) -> TargetModel`."""


@hookspec
def dflash_commands() -> Providers:  # type: ignore[empty-body]
    """Subcommands of `dflash-core`: name -> a function with typer annotations; its module must not import torch."""
