"""Targets and drafts of a benchmark, each loaded once however many systems use it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from dflash_core.bench.requests import Ask
from dflash_core.drafter.base import Drafter
from dflash_core.errors import RequestError, SettingsError
from dflash_core.loading import load_draft, load_target
from dflash_core.settings import Resolved, Settings, resolve
from dflash_core.target import TargetModel

TARGET = ("target", "engine", "dtype", "fast", "cache_dir")
DRAFT = ("draft", "drafter", "draft_window", "draft_vocab", "proposal")
"""Settings that a loaded model depends on."""

SAMPLING = ("temperature", "top_k", "top_p", "min_p")

Loaders = tuple[Callable[..., TargetModel], Callable[..., Drafter]]


class Workbench:
    """Hands out settings, targets and drafts to the systems under test."""

    def __init__(
        self,
        flags: Mapping[str, Any],
        config: Path | None = None,
        *,
        note: Callable[[str], None] = lambda message: None,
        loaders: Loaders = (load_target, load_draft),
    ) -> None:
        """
        Args:
            flags: settings from the command line, valid for all systems.
            config: TOML file of further settings.
            note: told before something is loaded.
        """
        self._flags = {name: value for name, value in flags.items() if value is not None}
        self._config = config
        self._note = note
        self._load_target, self._load_draft = loaders
        self._targets: dict[tuple[Any, ...], TargetModel] = {}
        self._drafts: dict[tuple[Any, ...], Drafter] = {}

    @property
    def settings(self) -> Settings:
        """Those of all systems that say nothing else."""
        return self.resolve({}).settings

    def resolve(
        self, options: Mapping[str, str], kind: str = "", used: Collection[str] = Settings.model_fields
    ) -> Resolved:
        """Settings of one system: the command's, and over them its own, given as text.

        Args:
            kind: of the system. used: the settings that it follows; another one among its options would be
                measured, and reported, as if it were in force.

        Raises:
            SettingsError: an option is no setting or not one of these, or its value is not allowed.
        """
        resolved = resolve({**self._flags, **typed(options)}, config=self._config)
        for name in options:
            if name not in used:
                raise SettingsError(
                    f"--system {kind}: {name} does nothing there; its options are {', '.join(used)}."
                )
        return resolved

    def target(self, resolved: Resolved) -> TargetModel:
        """The target of these settings.

        Raises:
            DFlashError: it is not named, or cannot be loaded.
        """
        path = resolved.require("target")
        chosen = resolved.settings
        key = tuple(getattr(chosen, name) for name in TARGET)
        if key not in self._targets:
            self._note(f"Loading {path} ...")
            self._targets[key] = self._load_target(
                path, chosen.engine, chosen.dtype, fast=chosen.fast, cache_dir=chosen.cache_dir
            )
        return self._targets[key]

    def draft(self, resolved: Resolved) -> Drafter:
        """The draft of these settings.

        Raises:
            DFlashError: it is not named, cannot be loaded, or does not fit the target.
        """
        target = self.target(resolved)
        path = resolved.require("draft")
        key = tuple(getattr(resolved.settings, name) for name in (*TARGET, *DRAFT))
        if key not in self._drafts:
            self._note(f"Loading {path} ...")
            options = {
                name: getattr(resolved.settings, name)
                for name in DRAFT[2:]
                if resolved.origins[name] != "default"
            }
            self._drafts[key] = self._load_draft(path, target, resolved.settings.drafter, **options)
        return self._drafts[key]


def in_force(settings: Settings, used: Collection[str]) -> dict[str, Any]:
    """The settings that a system follows, as JSON."""
    return settings.model_dump(mode="json", include=set(used))


def typed(options: Mapping[str, str]) -> dict[str, Any]:
    """Values as what they spell: whole numbers, decimal numbers, true and false, else text."""
    return {name: _typed(value) for name, value in options.items()}


def encode(target: TargetModel, ask: Ask) -> list[int]:
    """Token ids of a request.

    Raises:
        RequestError: the target has no tokenizer, or no chat template.
    """
    method = getattr(target, "encode_chat" if ask.messages else "encode", None)
    if method is None:
        raise RequestError(f"{target.info.name} has no tokenizer, so it cannot be asked in words.")
    ids: list[int] = method(list(ask.messages) if ask.messages else ask.prompt)
    return ids


def _typed(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
