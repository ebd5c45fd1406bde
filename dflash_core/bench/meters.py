"""Energy and memory of this machine over a stretch of time, where it reports them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RAPL = Path("/sys/class/powercap")
PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class EnergyReading:
    """Counters that only grow. Joules by source, and at which value each begins anew (`None`: never)."""

    joules: Mapping[str, float]
    wraps: Mapping[str, float]

    def since(self, earlier: EnergyReading) -> float | None:
        """Joules from all sources between two readings; `None` where nothing reports."""
        total, known = 0.0, False
        for source, now in self.joules.items():
            if source in earlier.joules:
                gained = now - earlier.joules[source]
                total += gained + (self.wraps.get(source, 0.0) if gained < 0 else 0.0)
                known = True
        return total if known else None


def read_energy(rapl: Path = RAPL, *, gpus: bool = False) -> EnergyReading:
    """Processor packages through RAPL, and GPUs through NVML; both count everything that runs on them.

    Args:
        gpus: whether the system under test may use them. An idle GPU is none of its costs otherwise.
    """
    joules: dict[str, float] = {}
    wraps: dict[str, float] = {}
    # Zones of a package ("intel-rapl:0:0") are part of it, and would be counted twice.
    for zone in sorted(rapl.glob("*-rapl:*")):
        if zone.name.count(":") != 1:
            continue
        try:
            joules[zone.name] = int((zone / "energy_uj").read_text()) / 1e6
            wraps[zone.name] = int((zone / "max_energy_range_uj").read_text()) / 1e6
        except (OSError, ValueError):
            joules.pop(zone.name, None)  # mostly readable by the administrator alone
    if gpus:
        joules |= _gpu_joules()
    return EnergyReading(joules, wraps)


def _gpu_joules() -> dict[str, float]:
    """Energy of every GPU since its driver was loaded."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    if nvml.nvmlInit_v2() != 0:
        return {}
    found: dict[str, float] = {}
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
        for index in range(count.value):
            handle, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
            if (
                nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
                and nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy)) == 0
            ):
                found[f"gpu:{index}"] = energy.value / 1e3
    nvml.nvmlShutdown()
    return found


def uses_gpus() -> bool:
    """Whether this process has begun to use CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def begin_memory() -> None:
    """Let peaks count from now. Where the system does not allow it they count from the process's start."""
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def read_memory() -> dict[str, int]:
    """Bytes: `resident` and `peak` of this process, all loaded systems included, and `gpu_peak`."""
    found: dict[str, int] = {}
    try:
        for line in (PROCESS / "status").read_text().splitlines():
            for name, field in (("VmRSS:", "resident"), ("VmHWM:", "peak")):
                if line.startswith(name):
                    found[field] = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        found = {}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["gpu_peak"] = torch.cuda.max_memory_allocated()
    return found
