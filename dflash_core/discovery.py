"""Loads the plugins that entry points name, one by one, so that a broken one takes nothing else down."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any, Literal, cast, get_args

import pluggy

from dflash_core import hookspecs
from dflash_core.errors import PluginError

Kind = Literal[
    "dialects",
    "drafters",
    "verifiers",
    "rollbacks",
    "schedules",
    "engines",
    "hosts",
    "tokenizers",
    "systems",
    "commands",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_CONTRACT = {"dialects": ("name", "matches", "read", "names", "optional", "decode", "encode", "write")}
"""Attributes that a provider must have; a kind that is not listed here has callables."""


@dataclass(frozen=True)
class Source:
    """Whose something is: the plugin, and the distribution it was installed with."""

    plugin: str
    distribution: str
    version: str
    extras: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"plugin {self.plugin!r} ({self.distribution} {self.version})"


@dataclass(frozen=True)
class Plugin:
    """A plugin that was loaded, from which file or module, and the names it gave."""

    source: Source
    location: str
    provides: Mapping[Kind, tuple[str, ...]]


@dataclass(frozen=True)
class Failure:
    """Something of a plugin that cannot be used; everything else goes on without it."""

    source: Source
    what: str
    cause: str

    def __str__(self) -> str:
        return f"{self.what} of {self.source}: {self.cause}"


@dataclass(frozen=True)
class Provider:
    """One named thing of one plugin; `value` is the thing, or where to import it from."""

    kind: Kind
    name: str
    source: Source
    value: Any

    @property
    def label(self) -> str:
        return f"{singular(self.kind)} {self.name!r}"

    def load(self) -> Any:
        """The thing itself.

        Raises:
            PluginError: it cannot be imported, or is not what the hook asks for.
        """
        try:
            return self._load()
        except PluginError as error:
            raise PluginError(f"{self.label} of {self.source} {error}") from error.__cause__

    def failure(self) -> Failure | None:
        """Why it cannot be used, or `None` when it can."""
        try:
            self._load()
        except PluginError as error:
            return Failure(self.source, self.label, str(error))
        return None

    def _load(self) -> Any:
        value = self.value
        if isinstance(value, str):
            try:
                value = pkgutil.resolve_name(value)
            except (Exception, SystemExit) as error:
                raise PluginError(f"cannot be imported: {_cause(error)}{self._remedy(error)}") from error
        missing = [name for name in _CONTRACT.get(self.kind, ("__call__",)) if not hasattr(value, name)]
        if missing:
            raise PluginError(f"is {value!r}, which has no {', '.join(missing)}.")
        if self.kind == "dialects" and value.name != self.name:
            raise PluginError(f"calls itself {value.name!r}; the two names must agree.")
        return value

    def _remedy(self, error: BaseException) -> str:
        extra = error.name if isinstance(error, ModuleNotFoundError) else None
        if extra not in self.source.extras:
            return ""
        return f'. Install it with `pip install "{self.source.distribution}[{extra}]"`.'


@dataclass(frozen=True)
class Catalogue:
    """Everything that was found; only the plugin modules themselves have been imported.

    A name that several plugins give has several providers, and a failure for each of them.
    """

    plugins: tuple[Plugin, ...]
    failures: tuple[Failure, ...]
    providers: Mapping[Kind, Mapping[str, tuple[Provider, ...]]] = field(repr=False)


def discover(found: Iterable[EntryPoint]) -> Catalogue:
    """Load the plugins that these entry points name.

    A plugin that cannot be loaded, names a hook that does not exist, or gives something that is not a
    mapping of names becomes a `Failure`; the others are not touched by it.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    plugins: list[Plugin] = []
    failures: list[Failure] = []
    providers: dict[Kind, dict[str, tuple[Provider, ...]]] = {kind: {} for kind in KINDS}
    for entry, source in sorted(((entry, _source(entry)) for entry in found), key=_order):
        try:
            plugin = _register(manager, entry)
        except (Exception, SystemExit) as error:  # noqa: BLE001 a stranger's code may raise anything
            failures.append(Failure(source, entry.value, _cause(error)))
            continue
        given: dict[Kind, tuple[str, ...]] = {}
        for kind in KINDS:
            try:
                answers = _ask(manager, plugin, kind)
            except (Exception, SystemExit) as error:  # noqa: BLE001 a stranger's code may raise anything
                failures.append(Failure(source, f"dflash_{kind}", _cause(error)))
                continue
            for name, value in answers.items():
                provider = Provider(kind, name, source, value)
                providers[kind][name] = (*providers[kind].get(name, ()), provider)
            if answers:
                given[kind] = tuple(answers)
        plugins.append(Plugin(source, getattr(plugin, "__file__", None) or entry.value, given))
    failures.extend(_clashes(providers))
    return Catalogue(tuple(plugins), tuple(failures), providers)


def singular(kind: Kind) -> str:
    """The word for one of a kind, as messages use it."""
    return "rollback policy" if kind == "rollbacks" else kind.removesuffix("s")


def _register(manager: pluggy.PluginManager, entry: EntryPoint) -> object:
    plugin = cast(object, entry.load())
    manager.register(plugin, name=entry.name)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        manager.unregister(plugin)
        known = ", ".join(f"dflash_{kind}" for kind in KINDS)
        raise PluginError(f"{error}; the hooks are {known}.") from error
    if not manager.get_hookcallers(plugin):
        raise PluginError("it answers no hook; mark its functions with dflash_core.hookspecs.hookimpl.")
    return plugin


def _ask(manager: pluggy.PluginManager, plugin: object, kind: Kind) -> dict[str, object]:
    """The answer of one plugin alone, so that what it raises is its own."""
    others = [other for other in manager.get_plugins() if other is not plugin]
    answers: dict[str, object] = {}
    for answer in manager.subset_hook_caller(f"dflash_{kind}", others)():
        if not isinstance(answer, Mapping) or not all(isinstance(name, str) and name for name in answer):
            raise PluginError(f"it answered {answer!r}, not a mapping from names to providers.")
        for name, value in answer.items():
            if isinstance(value, str) and not all(value.partition(":")):
                raise PluginError(f"{name!r} is {value!r}; a string must be 'package.module:attribute'.")
        answers.update(answer)
    return answers


def _clashes(providers: Mapping[Kind, Mapping[str, tuple[Provider, ...]]]) -> Iterator[Failure]:
    for kind in KINDS:
        for rivals in providers[kind].values():
            for one in rivals if len(rivals) > 1 else ():
                others = " and ".join(str(other.source) for other in rivals if other is not one)
                yield Failure(one.source, one.label, f"also given by {others}; neither is used.")


def _source(entry: EntryPoint) -> Source:
    if entry.dist is None:
        return Source(entry.name, "no distribution", "")
    extras = entry.dist.metadata.get_all("Provides-Extra") or ()
    return Source(entry.name, entry.dist.name, entry.dist.version, tuple(extras))


def _order(found: tuple[EntryPoint, Source]) -> tuple[bool, str, str]:
    """Ours first, then by name: the same order on every machine."""
    _, source = found
    return source.plugin != "core", source.plugin, source.distribution


def _cause(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"
