"""Measurements of this machine, kept between runs."""

import hashlib
import json
import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)


def machine() -> dict[str, Any]:
    """What the speed of a CPU product depends on, besides the product."""
    return {
        "cpu": cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def cpu_name() -> str:
    """The processor's model, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def recall(kind: str, key: Mapping[str, Any], root: Path) -> Any:
    """What was remembered for exactly this key, or `None`."""
    path = _path(kind, key, root)
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read and is measured anew: %s", path, error)
        return None
    return record.get("value") if isinstance(record, dict) and record.get("key") == key else None


def remember(kind: str, key: Mapping[str, Any], value: Any, root: Path) -> None:
    """Keep a JSON value for this key. Where the folder cannot be written to, a warning says so."""
    path = _path(kind, key, root)
    scratch = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps({"key": key, "value": value}, indent=1))
        scratch.replace(path)  # whole or not at all, whoever else writes at the same time
    except OSError as error:
        logger.warning("%s cannot be written, so the next run measures again: %s", path, error)


def _path(kind: str, key: Mapping[str, Any], root: Path) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return root / "calibration" / f"{kind}-{digest[:16]}.json"
