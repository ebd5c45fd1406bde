"""`--system KIND:name=value,...` as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_core.errors import SettingsError


@dataclass(frozen=True)
class SystemSpec:
    """One system as the user named it.

    Attributes:
        kind: name of a registered system.
        options: what was given after the colon, as text.
        label: what it is called in tables; `label=...`, else the text itself.
    """

    kind: str
    options: Mapping[str, str]
    label: str


def parse_systems(texts: Sequence[str]) -> list[SystemSpec]:
    """All systems of a command.

    Raises:
        SettingsError: one is malformed, or two have the same label.
    """
    specs = [parse_system(text) for text in texts]
    labels = [spec.label for spec in specs]
    for label in labels:
        if labels.count(label) > 1:
            raise SettingsError(f"Two systems are called {label!r}; tell them apart with label=NAME.")
    return specs


def parse_system(text: str) -> SystemSpec:
    """One `KIND` or `KIND:name=value,name=value`.

    Raises:
        SettingsError: it is malformed.
    """
    kind, colon, rest = text.partition(":")
    options: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not value.strip():
            raise SettingsError(f"--system {text}: {part!r} is not NAME=VALUE.")
        if name in options:
            raise SettingsError(f"--system {text}: {name} is given twice.")
        options[name] = value.strip()
    if not kind.strip() or (colon and not rest):
        raise SettingsError(f"--system {text!r} is not KIND or KIND:NAME=VALUE,...")
    label = options.pop("label", None)
    return SystemSpec(kind.strip(), options, label or text)


def take(options: Mapping[str, str], text: str, **allowed: str | None) -> dict[str, str]:
    """The options of a system that takes nothing but these; a value in `allowed` is a default.

    Raises:
        SettingsError: an option is unknown, or one without a default is missing.
    """
    for name in options:
        if name not in allowed:
            raise SettingsError(f"--system {text} has no option {name!r}; it has {', '.join(allowed)}.")
    chosen = {**{name: value for name, value in allowed.items() if value is not None}, **options}
    missing = [name for name in allowed if name not in chosen]
    if missing:
        raise SettingsError(f"--system {text} needs {missing[0]}: --system {text}:{missing[0]}=...")
    return chosen
