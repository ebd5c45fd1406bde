"""Where figures were measured: versions, processor, memory, GPUs; and whether two places are one."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("dflash-core", "torch", "transformers", "numpy", "dflash", "sglang", "vllm")

MOMENTARY = ("measured", "load_before")


def describe_environment() -> dict[str, Any]:
    """As JSON. What a machine does not tell is `None`."""
    return {
        "measured": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": _threads(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "memory_bytes": _memory(),
        "gpus": _gpus(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is another than before, in words; when it was and how busy are not of the machine."""
    old, new = _flat(before), _flat(now)
    return [
        f"{name} was {old.get(name)} and is {new.get(name)}"
        for name in {**old, **new}
        if name not in MOMENTARY and old.get(name) != new.get(name)
    ]


def _flat(environment: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in environment.items() if name != "packages"}
    return {**rest, **environment.get("packages", {})}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _threads() -> int | None:
    """Of torch, where something has imported it: an endpoint is measured without."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [str(torch.cuda.get_device_name(index)) for index in range(torch.cuda.device_count())]
