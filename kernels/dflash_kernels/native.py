"""Routines in C, compiled for this machine where it has a compiler."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_kernels.folders import cache_root

# Not -ffast-math: a library linked with it makes the whole process flush small numbers to zero.
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
SECONDS = 60

ONE_THREAD = 2**16
"""Elements up to which a routine of one thread is fast enough."""


@cache
def library(source: Path) -> Any:
    """The compiled file; `None` without a compiler, or where what it makes does not load.

    It is compiled once a machine, in a second, and kept in `$DFLASH_CACHE_DIR` or the user's cache folder.
    The compiler is `$CC`, else `cc`; with `CC=false` everything is computed by torch.
    """
    name, *options = shlex.split(os.environ.get("CC") or "cc") or ["cc"]
    compiler = shutil.which(name)
    if compiler is None or platform.system() != "Linux":
        return None
    try:
        found = ctypes.CDLL(str(_build([compiler, *options], source)))
        return found if hasattr(found, source.stem) else None
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
        and not x.is_neg()
        and not torch.compiler.is_compiling()
    )


def _build(compiler: Sequence[str], source: Path) -> Path:
    """The shared library, compiled unless it is there and whole."""
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, check=True, timeout=SECONDS
    ).stdout
    parts = (source.read_bytes(), version, " ".join([*compiler[1:], *FLAGS]).encode(), _processor())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = cache_root() / "kernels"
    path = folder / f"{source.stem}-{digest}.so"
    if not _whole(path):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            command = [*compiler, *FLAGS, "-x", "c", str(source), "-x", "none", "-lm", "-o", str(made)]
            subprocess.run(command, capture_output=True, check=True, timeout=SECONDS)
            _seal(path).write_text(hashlib.sha256(made.read_bytes()).hexdigest())
            made.replace(path)
    return path


def _seal(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _whole(path: Path) -> bool:
    """Whether the library is the one that was compiled: loading a damaged one may kill the process."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == _seal(path).read_text()
    except (OSError, ValueError):
        return False


def _processor() -> bytes:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine().encode()
    telling = {line for line in lines if line.startswith(("flags", "Features", "model name"))}
    return "\n".join(sorted(telling)).encode()
