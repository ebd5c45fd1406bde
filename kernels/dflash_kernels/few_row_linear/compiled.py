"""The product in C, compiled for this machine where it has a compiler."""

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

SOURCE = Path(__file__).with_name("few_rows.c")
# Not -ffast-math: a library linked with it makes the whole process flush small numbers to zero.
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
SECONDS = 60


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [n, in] @ weight [out, in].T + bias [out]: float32, on the CPU, weight and bias contiguous."""
    function = library()
    if function is None:
        raise RuntimeError("There is no compiled product on this machine, as `available` says.")
    x = x.contiguous()
    rows, inner = x.shape
    outer = weight.shape[0]
    product = torch.empty(rows, outer)
    function(
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        product.data_ptr(),
        rows,
        inner,
        outer,
        torch.get_num_threads(),
    )
    return product


@cache
def library() -> Any:
    """The compiled function; `None` without a compiler, or where what it makes does not load.

    It is compiled once a machine, in a second, and kept in `$DFLASH_CACHE_DIR` or the user's cache folder.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None or platform.system() != "Linux":
        return None
    try:
        path = _build(compiler)
        function = ctypes.CDLL(str(path)).few_rows
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None
    function.restype = None
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3 + [ctypes.c_int]
    return function


def _build(compiler: str) -> Path:
    """The shared library, compiled unless it is there."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    parts = (SOURCE.read_bytes(), version, " ".join(FLAGS).encode(), _processor())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = _cache() / "kernels"
    path = folder / f"few_rows-{digest}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            command = [compiler, *FLAGS, str(SOURCE), "-o", str(made)]
            subprocess.run(command, capture_output=True, check=True, timeout=SECONDS)
            made.replace(path)
    return path


def _cache() -> Path:
    chosen = os.environ.get("DFLASH_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash-core"


def _processor() -> bytes:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine().encode()
    telling = {line for line in lines if line.startswith(("flags", "Features", "model name"))}
    return "\n".join(sorted(telling)).encode()
