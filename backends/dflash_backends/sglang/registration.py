"""Makes the algorithm and its flags known to SGLang."""

import logging
from typing import Any

from dflash_backends.sglang.versions import OVERRIDE, TESTED, changes, installed, objection
from dflash_core.errors import UnsupportedError

logger = logging.getLogger(__name__)


def register_algorithm() -> None:
    """Called in each of SGLang's processes, before its command line is parsed.

    On a version that was not tried, the algorithm is registered but refuses to start: so the user sees why.

    Raises:
        UnsupportedError: this SGLang is so different that the algorithm cannot even be registered.
    """
    try:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        from dflash_backends.sglang.algorithm import NAME, DFlashCoreAlgorithm
        from dflash_backends.sglang.flags import register_flags

        SpeculativeAlgorithm.register(
            NAME, supports_overlap=False, validate_server_args=check_version, spec_class=DFlashCoreAlgorithm
        )(worker_class)
        register_flags()
    except (ImportError, AttributeError, TypeError) as error:
        raise UnsupportedError(
            f"DFLASH_CORE was tried with SGLang {', '.join(TESTED)} and cannot be registered with "
            f"{installed()}: {error}. {'; '.join(changes())}"
        ) from error


def check_version(server_args: Any) -> None:
    """Called by SGLang when the algorithm is asked for.

    Raises:
        UnsupportedError: the version was not tried, and nobody insists.
    """
    reason = objection()
    if reason is not None:
        raise UnsupportedError(reason)
    if installed() not in TESTED:
        logger.warning(
            "DFLASH_CORE on untested SGLang %s (%s). %s", installed(), OVERRIDE, "; ".join(changes())
        )


def worker_class(server_args: Any) -> type:
    """Called in a scheduler process, after the target was loaded and before SGLang makes its pools."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from dflash_backends.sglang.memory import register_hooks
    from dflash_backends.sglang.worker import DFlashCoreWorker

    register_hooks()
    HookRegistry.apply_hooks()
    return DFlashCoreWorker
