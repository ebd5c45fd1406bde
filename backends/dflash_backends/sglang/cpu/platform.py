"""The out-of-tree platform that `SGLANG_PLATFORM=dflash_cpu` selects.

SGLang imports it while it is itself being imported, so little of SGLang may be imported at the top.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.interface import PlatformCapabilities, PlatformEnum, SRTPlatform

from dflash_backends.sglang.cpu.slots import window_slots

logger = logging.getLogger(__name__)

ATTENTION = "torch_native"
"""SGLang's own torch backend, whose place ours takes: under this name alone does SGLang avoid Triton."""

NOTICE = (
    "SGLANG_PLATFORM=dflash_cpu: SGLang runs on the CPU, in torch, without its own kernels. This is for "
    "development, tests and trying things out, not for serving."
)


class DFlashCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """SGLang on the CPU, speculative decoding with chains and trees included."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """What has no meaning or no implementation here is off."""
        logger.warning(NOTICE)
        server_args.disable_overlap_schedule = True
        server_args.disable_cuda_graph = True
        if server_args.attention_backend is None:
            server_args.attention_backend = ATTENTION

    def init_backend(self) -> None:
        """Called in each worker before its model is loaded."""
        use_our_attention()

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def get_default_attention_backend(self) -> str:
        return ATTENTION

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        return ATTENTION

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return True

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return backend == ATTENTION

    def get_speculative_cache_locs_fn(self) -> Callable[..., torch.Tensor]:
        return window_slots

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        if kind != "mha":
            return None
        from dflash_backends.sglang.cpu.kv_pool import TorchKVPool

        return TorchKVPool


def use_our_attention() -> None:
    """Put our attention backend in the place of SGLang's torch one, also for SGLang's own draft models."""
    from sglang.srt.arg_groups.choices import (
        DRAFT_ATTENTION_BACKEND_CHOICES,
        add_draft_attention_backend_choices,
    )
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    from dflash_backends.sglang.cpu.attention import TorchAttention

    register_attention_backend(ATTENTION)(TorchAttention)
    if ATTENTION not in DRAFT_ATTENTION_BACKEND_CHOICES:
        add_draft_attention_backend_choices([ATTENTION])
