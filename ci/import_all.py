"""Import every module of the installed core and kernels, without any engine being there."""

import importlib
import importlib.util
import pkgutil

import dflash_core
import dflash_kernels

if importlib.util.find_spec("transformers") is not None:
    raise SystemExit(
        "transformers is installed; this environment is meant to hold the core's own needs only."
    )
SKIPPED = (".__main__",) if importlib.util.find_spec("triton") else (".__main__", ".kernel")
"""Kernels are in Triton, which an op looks for before it imports its own."""

count = 0
for package in (dflash_core, dflash_kernels):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith(SKIPPED):
            importlib.import_module(module.name)
            count += 1
print(f"imported {count} modules from {dflash_core.__path__[0]}")
