"""The rules of the house: floors, layout, sizes, hooks. Most are read off the source; nothing is imported."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_core import hookspecs

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "dflash_kernels": ROOT / "kernels/dflash_kernels",
    "dflash_core": ROOT / "dflash_core",
    "dflash_backends": ROOT / "backends/dflash_backends",
}
MAY_IMPORT = {
    "dflash_kernels": {"dflash_kernels", "torch", "triton"},
    "dflash_core": {
        *("dflash_core", "dflash_kernels", "torch", "numpy", "safetensors"),
        *("pluggy", "pydantic", "pydantic_core", "typer", "rich", "tomli", "accelerate"),
    },
}
BARE_FOLDERS = ("kernels", "backends", "tests", "tests/core", "tests/kernels", "tests/backends", "ci")
LINES = 400


def modules(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def own_files() -> list[Path]:
    roots = [*PACKAGES.values(), ROOT / "tests", ROOT / "ci"]
    return sorted(path for root in roots for path in root.rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function, by its full name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"{named(path)}:{node.lineno} has a relative import; name the module in full"
            )
            found.add(node.module)
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_floor_imports_nothing_above_it_and_no_engine(package):
    allowed = MAY_IMPORT[package] | set(sys.stdlib_module_names)
    wrong = [
        f"{named(path)} imports {module}"
        for path in modules(package)
        for module in sorted(imports(path))
        if module.split(".")[0] not in allowed
    ]
    assert not wrong


def test_an_adapter_knows_no_other_adapter():
    wrong = [
        f"{named(path)} imports {module}"
        for path in modules("dflash_backends")
        for module in sorted(imports(path))
        if module.startswith("dflash_backends.")
        and module.split(".")[1] != path.relative_to(PACKAGES["dflash_backends"]).parts[0]
    ]
    assert not wrong


def operations() -> list[Path]:
    return sorted(
        path for path in PACKAGES["dflash_kernels"].iterdir() if path.is_dir() and path.name != "__pycache__"
    )


@pytest.mark.parametrize("folder", operations(), ids=lambda folder: folder.name)
def test_an_op_is_a_public_function_beside_a_reference_of_the_same_signature(folder):
    public, reference = (
        {
            node.name: node
            for node in ast.parse((folder / name).read_text()).body
            if isinstance(node, ast.FunctionDef)
        }
        for name in ("__init__.py", "reference.py")
    )
    ops = {name: node for name, node in public.items() if not name.startswith("_")}
    assert folder.name in ops
    for name, node in ops.items():
        keywords = [argument.arg for argument in node.args.kwonlyargs]
        assert keywords[-1:] == ["impl"], f"{name} has no keyword `impl`"
        assert ast.unparse(node.args.kw_defaults[-1]) == "'auto'"
        assert ast.get_docstring(node), f"{name} does not say what it does"
        assert name in reference, f"reference.py does not define {name}"
        ours, theirs = arguments(node)[:-1], arguments(reference[name])
        assert ours == theirs, f"{name} and its reference take different arguments"


def arguments(node: ast.FunctionDef) -> list[str]:
    return [ast.unparse(argument) for argument in (*node.args.args, *node.args.kwonlyargs)]


def test_no_file_is_longer_than_a_few_screens():
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in own_files()}
    assert not {name: count for name, count in lengths.items() if count > LINES}


@pytest.mark.parametrize("folder", BARE_FOLDERS)
def test_a_bare_folder_shadows_no_installed_package(folder):
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_marked_as_typed(package):
    assert (PACKAGES[package] / "py.typed").exists()


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_and_what_is_public_in_them_say_what_they_are(package):
    silent = []
    for path in modules(package):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if tree.body and not ast.get_docstring(tree):
            silent.append(named(path))
        silent += [
            f"{named(path)}: {node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            # What a hook does is said where the hook is specified.
            if not any("hookimpl" in ast.unparse(decorator) for decorator in node.decorator_list)
            if not ast.get_docstring(node)
        ]
    assert not silent


def test_nothing_names_a_place_of_one_machine():
    # Built from parts, so that this file does not name them either.
    places = ["/".join(["", first, ""]) for first in ("work", "root", "home")]
    texts = [*own_files(), ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "ci").iterdir()]
    texts += [path for path in (ROOT / "README.md", ROOT / ".ci/run") if path.exists()]
    wrong = [
        f"{named(path)}: {place}"
        for path in texts
        if path.is_file()
        for place in places
        if place in path.read_text(encoding="utf-8")
    ]
    assert not wrong


HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("dflash_")}
PROVIDERS = {
    "dflash_drafters": hookspecs.DrafterProvider,
    "dflash_verifiers": hookspecs.VerifierProvider,
    "dflash_rollbacks": hookspecs.RollbackProvider,
    "dflash_schedules": hookspecs.ScheduleProvider,
    "dflash_engines": hookspecs.EngineProvider,
    "dflash_hosts": hookspecs.HostProvider,
    "dflash_systems": hookspecs.SystemProvider,
    "dflash_tokenizers": hookspecs.TokenizerProvider,
}


def test_there_are_at_most_ten_hooks():
    assert 0 < len(HOOKS) <= 10


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_typed_and_says_what_a_provider_is(name):
    signature = inspect.signature(HOOKS[name])
    assert signature.return_annotation is not inspect.Signature.empty
    assert inspect.getdoc(HOOKS[name])
    assert "Name ->" in inspect.getdoc(HOOKS[name])


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_hook_documents_the_signature_that_its_providers_have(name):
    signature = inspect.signature(PROVIDERS[name].__call__)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    documented = f"{inspect.Signature(parameters)} -> {signature.return_annotation}"
    assert f"`{documented}`" in inspect.getdoc(HOOKS[name])


@pytest.mark.parametrize(
    "module",
    ["dflash_core", "dflash_core.plugins", "dflash_core.builtin", "dflash_core.settings", "dflash_core.cli"],
)
def test_importing_what_the_command_line_needs_does_not_import_torch(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
