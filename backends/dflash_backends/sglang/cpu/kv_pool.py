"""SGLang's KV pool, moving entries with torch instead of a Triton kernel."""

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, move_kv_cache_native
from torch import Tensor


class TorchKVPool(MHATokenToKVPool):
    """Keys and values by slot; only how entries move differs from the base."""

    def _init_kv_copy_and_warmup(self) -> None:
        """Nothing to tune."""
        self._kv_copy_config = None

    def _move_kv_cache_impl(self, tgt_loc: Tensor, src_loc: Tensor) -> None:
        move_kv_cache_native(self.k_buffer, self.v_buffer, tgt_loc, src_loc)
