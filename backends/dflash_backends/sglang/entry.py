"""What SGLang's entry points call. Listing these imports nothing of SGLang."""

import os

PLATFORM = "dflash_cpu"
"""The value of `SGLANG_PLATFORM` that selects the CPU platform."""


def register() -> None:
    """Make `DFLASH_CORE` known to SGLang; called by SGLang at the start of each of its processes."""
    from dflash_backends.sglang.registration import register_algorithm

    register_algorithm()
    if on_cpu_platform():
        from dflash_backends.sglang.cpu.hooks import register_hooks

        register_hooks()


def platform() -> str | None:
    """The CPU platform's class for SGLang to import, or `None`: it is never chosen but by name."""
    return "dflash_backends.sglang.cpu.platform:DFlashCpuPlatform" if on_cpu_platform() else None


def on_cpu_platform() -> bool:
    """Whether this process was told to use the CPU platform."""
    return os.environ.get("SGLANG_PLATFORM") == PLATFORM
