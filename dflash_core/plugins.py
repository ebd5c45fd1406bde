"""Hands out what the installed plugins provide, by kind and name."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from dflash_core import hookspecs
from dflash_core.discovery import Catalogue, Kind, discover, singular
from dflash_core.errors import PluginError, SettingsError


class Registry(Mapping[str, Any]):
    """Name -> provider of one kind. Listing imports nothing; a look-up imports that one provider."""

    def __init__(self, kind: Kind, catalogue: Catalogue) -> None:
        self._word = singular(kind)
        self._providers = catalogue.providers[kind]
        self._failures = catalogue.failures

    def __getitem__(self, name: str) -> Any:
        """
        Raises:
            KeyError: no plugin gives this name; `require` says so in a sentence.
            PluginError: several plugins give it, or it cannot be imported.
        """
        provider, *rivals = self._providers[name]
        if rivals:
            owners = " and ".join(str(one.source) for one in (provider, *rivals))
            raise PluginError(f"{provider.label} is given by {owners}. Uninstall all but one of them.")
        return provider.load()

    def __contains__(self, name: object) -> bool:
        return name in self._providers

    def __iter__(self) -> Iterator[str]:
        return iter(self._providers)

    def __len__(self) -> int:
        return len(self._providers)

    def require(self, name: str) -> Any:
        """A look-up for a name that a user typed.

        Raises:
            SettingsError: there is no such name; the message lists those there are.
            PluginError: several plugins give it, or it cannot be imported.
        """
        if name in self:
            return self[name]
        near = get_close_matches(name, self, 1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        broken = "".join(f" Not loaded: {str(failure).rstrip('.')}." for failure in self._failures)
        there = ", ".join(self) or "none"
        raise SettingsError(f"There is no {self._word} {name!r}.{guess} Available: {there}.{broken}")


@functools.cache
def catalogue() -> Catalogue:
    """What is installed in this environment, read once a process.

    Raises:
        PluginError: this package is on the path but not installed, so that its entry points are missing.
    """
    found = entry_points(group=hookspecs.PROJECT)
    if "core" not in found.names:
        raise PluginError(
            "dflash-core can be imported but is not installed, so its own plugins cannot be found. "
            "Run `pip install -e .` in its repository."
        )
    return discover(found)


def registry(kind: Kind) -> Registry:
    """What all installed plugins give of one kind."""
    return Registry(kind, catalogue())


def provider(kind: Kind, name: str) -> Any:
    """The provider of this name; errors as in `Registry.require`."""
    return registry(kind).require(name)
