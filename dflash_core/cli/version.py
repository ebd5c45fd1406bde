"""`dflash-core version`: what is installed, read from metadata so that nothing heavy is imported."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from dflash_core.cli import output

PACKAGES = ("torch", "transformers", "safetensors", "triton")


def own_version() -> str:
    """Version of the installed `dflash-core` distribution."""
    return version("dflash-core")


def versions() -> dict[str, str | None]:
    """Ours, Python's, the packages' and the platform's; `None` for what is not installed."""
    found: dict[str, str | None] = {"dflash-core": own_version(), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found | {"platform": platform.platform()}


def version_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the versions of dflash-core, Python, and the packages it stands on."""
    found = versions()
    if as_json:
        output.print_json(found)
        return
    for name, value in found.items():
        print(f"{name:<13}{value or 'not installed'}")
