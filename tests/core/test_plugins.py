"""Plugins are found, a broken one is named with its cause and harms nobody, and listing costs nothing."""

import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions, entry_points

import pytest

from dflash_core import plugins
from dflash_core.discovery import KINDS, discover
from dflash_core.errors import PluginError, SettingsError
from dflash_core.plugins import Registry

HEAD = "from dflash_core.hookspecs import hookimpl\n"
GOOD = HEAD + "@hookimpl\ndef dflash_verifiers():\n    return {'good': lambda: 'a verifier'}\n"


class Installed:
    """A folder of distributions with one plugin each: what an environment looks like to the finder."""

    def __init__(self, folder):
        self.folder = folder

    def add(self, plugin, source, distribution=None, extras=(), module=None):
        distribution = distribution or f"{plugin}-dist"
        module = module or f"{self.folder.name.replace('-', '_')}_{plugin}"
        (self.folder / f"{module}.py").write_text(source)
        info = self.folder / f"{distribution.replace('-', '_')}-2.0.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", "Version: 2.0"]
        lines += [f"Provides-Extra: {extra}" for extra in extras]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "entry_points.txt").write_text(f"[dflash_core]\n{plugin} = {module}\n")
        return module

    def discover(self):
        found = [point for one in distributions(path=[str(self.folder)]) for point in one.entry_points]
        return discover(found)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    environment = Installed(tmp_path)
    environment.add("good", GOOD)
    return environment


def verifier(catalogue, name="good"):
    return Registry("verifiers", catalogue).require(name)


def only_failure(catalogue):
    [failure] = catalogue.failures
    return failure


def test_a_plugin_says_where_it_comes_from_and_what_it_provides(installed):
    [plugin] = installed.discover().plugins
    assert (plugin.source.plugin, plugin.source.distribution, plugin.source.version) == (
        "good",
        "good-dist",
        "2.0",
    )
    assert plugin.location == str(next(installed.folder.glob("*_good.py")))
    assert plugin.provides == {"verifiers": ("good",)}


BROKEN = {
    "import": ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
    "crash": ("1 / 0", "ZeroDivisionError: division by zero"),
    "exit": ("raise SystemExit('no licence')", "SystemExit: no licence"),
    "syntax": ("def f(:", "SyntaxError"),
    "unknown-hook": (
        HEAD + "@hookimpl\ndef dflash_verifers():\n    return {}\n",
        "unknown hook 'dflash_verifers'",
    ),
    "argument": (HEAD + "@hookimpl\ndef dflash_verifiers(thing):\n    return {}\n", "thing"),
    "unmarked": ("def dflash_verifiers():\n    return {}\n", "answers no hook"),
    "hook-crash": (HEAD + "@hookimpl\ndef dflash_verifiers():\n    raise OSError('disk')\n", "OSError: disk"),
    "no-mapping": (HEAD + "@hookimpl\ndef dflash_verifiers():\n    return ['x']\n", "mapping from names"),
    "no-string": (HEAD + "@hookimpl\ndef dflash_verifiers():\n    return {1: print}\n", "mapping from names"),
    "no-attribute": (
        HEAD + "@hookimpl\ndef dflash_verifiers():\n    return {'x': 'module'}\n",
        "module:attribute",
    ),
}


@pytest.mark.parametrize(("source", "cause"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_named_with_its_cause_and_the_others_work(installed, source, cause):
    installed.add("broken", source)
    catalogue = installed.discover()
    failure = only_failure(catalogue)
    assert failure.source.plugin == "broken"
    assert failure.source.distribution == "broken-dist"
    assert cause in failure.cause
    assert verifier(catalogue)() == "a verifier"


def test_a_hook_that_raises_does_not_take_the_plugins_other_hooks_along(installed):
    source = HEAD + "@hookimpl\ndef dflash_verifiers():\n    raise OSError('disk')\n"
    installed.add("half", source + "@hookimpl\ndef dflash_schedules():\n    return {'mine': list}\n")
    catalogue = installed.discover()
    assert only_failure(catalogue).what == "dflash_verifiers"
    assert Registry("schedules", catalogue)["mine"] is list


def test_a_name_of_two_plugins_is_an_error_that_names_both_and_leaves_other_names_alone(installed):
    both = HEAD + "@hookimpl\ndef dflash_verifiers():\n    return {'good': print, 'other': print}\n"
    installed.add("rival", both)
    catalogue = installed.discover()
    with pytest.raises(PluginError, match=r"'good'.*'good' \(good-dist 2.0\).*'rival' \(rival-dist 2.0\)"):
        verifier(catalogue)
    assert verifier(catalogue, "other") is print
    assert {failure.source.plugin for failure in catalogue.failures} == {"good", "rival"}


def test_listing_imports_no_provider_and_asking_for_one_imports_only_that(installed):
    heavy, other = (f"{installed.folder.name.replace('-', '_')}_{name}" for name in ("heavy", "other"))
    for name in (heavy, other):
        (installed.folder / f"{name}.py").write_text("def make():\n    return 'made'\n")
    answer = f"{{'heavy': '{heavy}:make', 'other': '{other}:make'}}"
    installed.add("lazy", HEAD + f"@hookimpl\ndef dflash_verifiers():\n    return {answer}\n")
    catalogue = installed.discover()
    registry = Registry("verifiers", catalogue)
    assert set(registry) == {"good", "heavy", "other"}
    assert "heavy" in registry
    assert heavy not in sys.modules
    assert registry["heavy"]() == "made"
    assert other not in sys.modules


def lazy(installed, value, kind="verifiers", extras=()):
    source = HEAD + f"@hookimpl\ndef dflash_{kind}():\n    return {{'mine': {value!r}}}\n"
    installed.add("lazy", source, extras=extras)
    return Registry(kind, installed.discover())


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("not_there.at_all:x", "ModuleNotFoundError: No module named 'not_there'"),
        ("json:not_there", "AttributeError"),
        ("json:__name__", "has no __call__"),
    ],
)
def test_a_provider_that_cannot_be_had_names_its_plugin_and_the_cause(installed, value, cause):
    registry = lazy(installed, value)
    with pytest.raises(PluginError, match=r"verifier 'mine' of plugin 'lazy' \(lazy-dist 2.0\)") as caught:
        registry["mine"]
    assert cause in str(caught.value)
    assert registry["good"]() == "a verifier"


def test_a_missing_package_of_an_extra_comes_with_the_command_that_installs_it(installed):
    registry = lazy(installed, "an_engine.model:load", "engines", extras=("an_engine",))
    with pytest.raises(PluginError, match=r'pip install "lazy-dist\[an_engine\]"'):
        registry["mine"]


def test_a_dialect_must_have_what_a_dialect_has_under_its_own_name(installed):
    registry = lazy(installed, "json:dumps", "dialects")
    with pytest.raises(
        PluginError, match="has no name, matches, read, names, optional, decode, encode, write"
    ):
        registry["mine"]


def test_a_name_that_nobody_provides_is_answered_with_those_there_are(installed):
    installed.add("broken", "1 / 0")
    catalogue = installed.discover()
    with pytest.raises(SettingsError) as caught:
        verifier(catalogue, "goood")
    message = str(caught.value)
    assert "no verifier 'goood'. Did you mean 'good'? Available: good." in message
    assert "plugin 'broken' (broken-dist 2.0): ZeroDivisionError" in message


def test_the_order_of_plugins_does_not_depend_on_the_order_of_the_disk(installed):
    installed.add("another", GOOD.replace("good", "another"))
    found = [point for one in distributions(path=[str(installed.folder)]) for point in one.entry_points]
    forward, backward = discover(found), discover(reversed(found))
    assert forward.plugins == backward.plugins


def test_our_own_providers_come_through_the_same_hooks():
    catalogue = plugins.catalogue()
    core = next(plugin for plugin in catalogue.plugins if plugin.source.plugin == "core")
    assert core.source.distribution == "dflash-core"
    assert set(core.provides) == set(KINDS) - {"engines", "hosts", "tokenizers"}
    assert "transformers" in plugins.registry("engines")
    assert "sglang" in plugins.registry("hosts")


def builtin():
    return [
        (kind, name)
        for kind in KINDS
        for name, providers in plugins.catalogue().providers[kind].items()
        if providers[0].source.distribution == "dflash-core"
    ]


CALLS = {
    "drafters": (("checkpoint", "target"), {"draft_window": 8, "draft_vocab": 8, "proposal": "auto"}),
    "verifiers": ((), {}),
    "rollbacks": ((), {}),
    "schedules": (("target", "drafter"), {}),
    "engines": (("path",), {"dtype": "float32", "fast": "auto"}),
    "hosts": ((), {}),
    "tokenizers": (("path",), {"cache_dir": None}),
}


@pytest.mark.parametrize(("kind", "name"), builtin(), ids=lambda value: value)
def test_every_built_in_can_be_had_and_called_as_its_hook_says(kind, name):
    provider = plugins.provider(kind, name)
    if kind in CALLS:
        arguments, options = CALLS[kind]
        inspect.signature(provider).bind(*arguments, **options)


def test_many_threads_may_be_the_first_to_ask():
    plugins.catalogue.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        lists = list(pool.map(lambda _: sorted(plugins.registry("verifiers")), range(32)))
    assert lists == [lists[0]] * 32
    assert "greedy" in lists[0]


def test_a_copy_that_is_on_the_path_but_not_installed_says_so(monkeypatch):
    plugins.catalogue.cache_clear()
    monkeypatch.setattr(plugins, "entry_points", lambda group: entry_points(group="a group of nobody"))
    with pytest.raises(PluginError, match="not installed"):
        plugins.registry("verifiers")
    plugins.catalogue.cache_clear()
