"""The hooks through which everything swappable is registered, ours and a stranger's alike.

A plugin is a module (or object) named by an entry point in the group `dflash_core`; it marks its functions
with `hookimpl`. All hooks are called once, together, at the first use of a registry, without arguments and
in no order a plugin may rely on. Each answers with a mapping from a name to a provider: the object itself,
or a string "package.module:attribute" that is imported when the name is first asked for, so that a plugin
costs nothing to list. The answers of all plugins are joined. A name that two plugins give belongs to
neither: asking for it is an error that names both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from os import PathLike

    import typer

    from dflash_core.bench.systems.base import System
    from dflash_core.bench.workbench import Workbench
    from dflash_core.checkpoint.base import Dialect, DraftCheckpoint
    from dflash_core.drafter.base import Drafter
    from dflash_core.rollback.base import RollbackPolicy
    from dflash_core.schedule.base import Schedule
    from dflash_core.target import TargetModel
    from dflash_core.tokenizer import ChatTokenizer
    from dflash_core.verify.base import Verifier

PROJECT = "dflash_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Providers = Mapping[str, Any]
"""What an implementation may declare as its result; the hooks below say what the values must be."""


class DrafterProvider(Protocol):
    """Builds a drafter for a target.

    `options` are, as far as they were set, `draft_window`, `draft_vocab` and `proposal`, and whatever a
    caller of `load_draft` adds.
    """

    def __call__(self, checkpoint: DraftCheckpoint, target: TargetModel, **options: Any) -> Drafter: ...


class VerifierProvider(Protocol):
    """Builds a verifier."""

    def __call__(self) -> Verifier: ...


class RollbackProvider(Protocol):
    """Builds a rollback policy."""

    def __call__(self) -> RollbackPolicy: ...


class ScheduleProvider(Protocol):
    """Builds a schedule for a target and its drafter, which is `None` when decoding is plain."""

    def __call__(self, target: TargetModel, drafter: Drafter | None) -> Schedule: ...


class EngineProvider(Protocol):
    """Loads a target from a path or an id.

    `options` are the setting `fast` and whatever a caller of `load_target` adds.
    """

    def __call__(self, path: str | PathLike[str], *, dtype: str, **options: Any) -> TargetModel: ...


class HostProvider(Protocol):
    """Makes this package known to an engine that owns the loop; called by that engine, in its processes."""

    def __call__(self) -> None: ...


class TokenizerProvider(Protocol):
    """Loads a target's tokenizer from a path or an id, without its weights.

    `options` are the setting `cache_dir`.
    """

    def __call__(self, path: str | PathLike[str], **options: Any) -> ChatTokenizer: ...


class SystemProvider(Protocol):
    """Builds a system that `dflash-core bench` measures.

    `options` are what stands after the colon of `--system NAME:option=value,...`, as text.
    """

    def __call__(self, bench: Workbench, options: Mapping[str, str]) -> System: ...


@hookspec
def dflash_dialects() -> Mapping[str, Dialect | str]:  # type: ignore[empty-body]
    """Checkpoint layouts. Name -> dialect; the name is the dialect's own `name`."""


@hookspec
def dflash_drafters() -> Mapping[str, DrafterProvider | str]:  # type: ignore[empty-body]
    """Drafter kinds. Name -> `(checkpoint, target, **options) -> Drafter`."""


@hookspec
def dflash_verifiers() -> Mapping[str, VerifierProvider | str]:  # type: ignore[empty-body]
    """Verifiers. Name -> `() -> Verifier`."""


@hookspec
def dflash_rollbacks() -> Mapping[str, RollbackProvider | str]:  # type: ignore[empty-body]
    """Rollback policies. Name -> `() -> RollbackPolicy`."""


@hookspec
def dflash_schedules() -> Mapping[str, ScheduleProvider | str]:  # type: ignore[empty-body]
    """Schedules. Name -> `(target, drafter) -> Schedule`."""


@hookspec
def dflash_engines() -> Mapping[str, EngineProvider | str]:  # type: ignore[empty-body]
    """Engines that the decoder can drive. Name -> `(path, *, dtype, **options) -> TargetModel`."""


@hookspec
def dflash_hosts() -> Mapping[str, HostProvider | str]:  # type: ignore[empty-body]
    """Engines that drive the pieces of the cycle themselves. Name -> `() -> None`, which registers with it.

    The module that holds it is imported where the engine may be missing, so it must not import it at its top.
    """


@hookspec
def dflash_tokenizers() -> Mapping[str, TokenizerProvider | str]:  # type: ignore[empty-body]
    """Tokenizers, under the name of the engine whose targets they belong to.

    Name -> `(path, **options) -> ChatTokenizer`.
    """


@hookspec
def dflash_systems() -> Mapping[str, SystemProvider | str]:  # type: ignore[empty-body]
    """Systems that a benchmark can measure. Name -> `(bench, options) -> System`."""


@hookspec
def dflash_commands() -> Mapping[str, Callable[..., None] | typer.Typer | str]:  # type: ignore[empty-body]
    """Subcommands of `dflash-core`. Name -> a function with typer annotations, or a `typer.Typer` of several.

    The module that holds it is imported for `dflash-core --help`, so it must not import torch at its top.
    """
