"""Where settings come from: defaults < checkpoint < TOML file < environment < flags, and who set what."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from dflash_core.errors import SettingsError
from dflash_core.settings.model import ALIASES, LATER, Settings, contradictions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "DFLASH_"
FILE = Path("dflash.toml")
"""Read from the working directory when no other file is named."""

CONFIG = "DFLASH_CONFIG"
"""Names another file than `dflash.toml`, for programs whose flags are not ours (engines that load us)."""

NOT_SETTINGS = frozenset({CONFIG, "DFLASH_PYTHON", "DFLASH_ENGINES", "DFLASH_UNTESTED_ENGINE"})
"""Variables of our prefix that are not settings: scripts of the repository and engine guards read them."""


@dataclass(frozen=True)
class Resolved:
    """The settings that hold, and where each value came from, in words."""

    settings: Settings
    origins: Mapping[str, str]

    def require(self, name: str) -> Any:
        """The value of a setting that has no default.

        Raises:
            SettingsError: nothing sets it.
        """
        value = getattr(self.settings, name)
        if value is None:
            raise SettingsError(
                f"{name} is not set. Give {_flag(name)}, set {PREFIX}{name.upper()}, "
                f"or write {name} into {FILE}."
            )
        return value


@dataclass(frozen=True)
class Layer:
    """Values of one source; `origins` has the words for where each was found."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
) -> Resolved:
    """Join all sources of settings.

    Args:
        flags: values from the command line; those that are `None` were not given.
        config: a TOML file that must exist; by default the one that `DFLASH_CONFIG` names, else `dflash.toml`
            in the working directory, if there.
        environ: the process's environment by default.
        checkpoint: what a draft checkpoint says, e.g. its `block_size`.

    Raises:
        SettingsError: a name is unknown, a value is not allowed, or two settings contradict each other.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG):
        config = Path(environ[CONFIG])
    layers = [
        _validated(Layer(checkpoint or {}, dict.fromkeys(checkpoint or {}, "checkpoint"))),
        _validated(_file_layer(config)),
        _validated(_environment_layer(environ), strings=True),
        _validated(Layer(given, {name: _flag(name) for name in given})),
    ]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.model_fields, "default")
    for layer in layers:
        values |= layer.values
        origins |= layer.origins
    settings = Settings.model_validate(values)
    for first, second, reason in contradictions(settings):
        parts = (f"{name} is {getattr(settings, name)} ({origins[name]})" for name in (first, second))
        raise SettingsError(f"{' but '.join(parts)}: {reason}.")
    return Resolved(settings, origins)


def _file_layer(config: Path | None) -> Layer:
    path = config or FILE
    if config is None and not path.exists():
        return Layer({}, {})
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from error
    return Layer(values, dict.fromkeys(values, str(path)))


def _environment_layer(environ: Mapping[str, str]) -> Layer:
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        name = ALIASES.get(variable, variable.removeprefix(PREFIX).lower())
        if values.get(name, environ[variable]) != environ[variable]:
            raise SettingsError(
                f"{origins[name]} is {values[name]!r} but {variable} is {environ[variable]!r}; "
                "they are the same setting, so unset one of them."
            )
        values[name], origins[name] = environ[variable], variable
    return Layer(values, origins)


def _validated(layer: Layer, strings: bool = False) -> Layer:
    """Values in the types of `Settings`; text is read as what it spells only where `strings` says so.

    The word "none" unsets an optional setting that a lower layer has set: TOML, variables and flags have no
    null.
    """
    for name in layer.values:
        if name not in Settings.model_fields:
            raise SettingsError(_unknown(name, layer.origins[name]))
    values = {
        name: None if value == "none" and _optional(name) else value for name, value in layer.values.items()
    }
    parse = Settings.model_validate_strings if strings else Settings.model_validate
    try:
        settings = parse({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        extra = Settings.model_fields[name].json_schema_extra
        allowed = extra["allowed"] if isinstance(extra, dict) else ""
        subject = _subject(name, layer.origins[name])
        raise SettingsError(f"{subject} is {values[name]!r}; it must be {allowed}.") from error
    known = {name: None if value is None else getattr(settings, name) for name, value in values.items()}
    return Layer(known, layer.origins)


def _optional(name: str) -> bool:
    """Whether a setting may be unset."""
    return type(None) in get_args(Settings.model_fields[name].annotation)


def _unknown(name: str, origin: str) -> str:
    subject = _subject(name, origin)
    if name in LATER:
        return f"{subject} {LATER[name]}."
    aliases = {variable.removeprefix(PREFIX).lower() for variable in ALIASES}
    variable = origin.startswith(PREFIX)
    near = get_close_matches(name, [*Settings.model_fields, *(aliases if variable else ())], 1)
    if not near:
        return f"{subject} is not a setting; `dflash-core settings` lists those there are."
    guess = PREFIX + near[0].upper() if variable else near[0]
    return f"{subject} is not a setting. Did you mean {guess}?"


def _subject(name: str, origin: str) -> str:
    return origin if origin.startswith((PREFIX, "--")) else f"{origin}: {name}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
