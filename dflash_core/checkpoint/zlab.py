"""z-lab's own layout, of DFlash and DFlash2, and of DSpark without SpecForge's marks; see `native`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dflash_core.checkpoint.native import FIRST, is_native, is_specforge, read_native, write_native
from dflash_core.checkpoint.shapes import tensor_shapes
from dflash_core.spec import DraftSpec

if TYPE_CHECKING:
    from torch import Tensor


class ZLab:
    """z-lab's own layout."""

    name = "zlab"

    def matches(self, config: Mapping[str, Any]) -> bool:
        return is_native(config) and not is_specforge(config)

    def read(self, config: Mapping[str, Any], where: str) -> DraftSpec:
        return read_native(config, where, self.name)

    def names(self, spec: DraftSpec) -> Mapping[str, str]:
        return {name: name for name in tensor_shapes(spec)}

    def optional(self, spec: DraftSpec) -> Mapping[str, str]:
        return {}

    def decode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def write(self, spec: DraftSpec) -> dict[str, Any]:
        config = write_native(spec, block_size=spec.network_slots)
        if config["architectures"] == [FIRST]:
            config["auto_map"] = {"AutoModel": f"dflash.{FIRST}"}
        return config


DIALECT = ZLab()
