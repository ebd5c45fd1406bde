"""Routines in C, compiled for this machine where it has a compiler."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_kernels.folders import cache_root

# Not -ffast-math: a library linked with it makes the whole process flush small numbers to zero.
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
SECONDS = 60


@cache
def library(source: Path) -> Any:
    """The compiled file; `None` without a compiler, or where what it makes does not load.

    It is compiled once a machine, in a second, and kept in `$DFLASH_CACHE_DIR` or the user's cache folder.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None or platform.system() != "Linux":
        return None
    try:
        return ctypes.CDLL(str(_build(compiler, source)))
    except (OSError, subprocess.SubprocessError):
        return None


def function(source: Path, pointers: int, *others: Any) -> Any:
    """The routine of the file's own name, which takes so many pointers and then `others`; or `None`."""
    found = library(source)
    if found is None:
        return None
    routine = getattr(found, source.stem)
    routine.restype = None
    routine.argtypes = [*[ctypes.c_void_p] * pointers, *others]
    return routine


def plain_float(x: Tensor) -> bool:
    """Whether a routine may read the tensor's memory: float32 on the CPU, no gradients, no tracing."""
    return (
        x.dtype == torch.float32
        and x.is_cpu
        and not (x.requires_grad and torch.is_grad_enabled())
        and x.layout == torch.strided
        and not torch.compiler.is_compiling()
    )


def _build(compiler: str, source: Path) -> Path:
    """The shared library, compiled unless it is there."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    parts = (source.read_bytes(), version, " ".join(FLAGS).encode(), _processor())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = cache_root() / "kernels"
    path = folder / f"{source.stem}-{digest}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            command = [compiler, *FLAGS, str(source), "-o", str(made)]
            subprocess.run(command, capture_output=True, check=True, timeout=SECONDS)
            made.replace(path)
    return path


def _processor() -> bytes:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine().encode()
    telling = {line for line in lines if line.startswith(("flags", "Features", "model name"))}
    return "\n".join(sorted(telling)).encode()
