"""SpecForge's layout: z-lab's with `block_size` at the top level, told apart by the marks of its trainer.

Its Domino and DSpark drafts share the layout but not the meaning; see `refused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_core.checkpoint.native import SPECFORGE_MODULE, is_native, is_specforge, read_native, write_native
from dflash_core.checkpoint.refused import projector
from dflash_core.checkpoint.zlab import ZLab
from dflash_core.errors import CheckpointError
from dflash_core.spec import DraftSpec


class SpecForge(ZLab):
    """SpecForge's layout; tensors are z-lab's."""

    name = "specforge"

    def matches(self, config: Mapping[str, Any]) -> bool:
        return is_native(config) and is_specforge(config)

    def read(self, config: Mapping[str, Any], where: str) -> DraftSpec:
        if (reason := projector(config)) is not None:
            raise CheckpointError(f"{where}: {reason}")
        return read_native(config, where, self.name)

    def write(self, spec: DraftSpec) -> dict[str, Any]:
        config = write_native(spec, projector_type="dflash")
        return {**config, "auto_map": {"AutoModel": f"{SPECFORGE_MODULE}{config['architectures'][0]}"}}


DIALECT = SpecForge()
