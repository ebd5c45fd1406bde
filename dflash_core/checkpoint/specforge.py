"""SpecForge's layout: z-lab's with `block_size` at the top level, told apart by the marks of its trainer.

Its Domino and DSpark drafts share the layout but not the meaning; see `refused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_core.checkpoint.refused import projector
from dflash_core.checkpoint.zlab import SECTION, ZLab, is_native, read_native, write_native
from dflash_core.errors import CheckpointError
from dflash_core.spec import DraftSpec

MODULE = "modeling_dflash."
MARKS = ("projector_type", "attention_mode", "attention_modes")


def is_specforge(config: Mapping[str, Any]) -> bool:
    """Whether a config carries a mark of SpecForge's trainer."""
    modules = config.get("auto_map")
    section = config.get(SECTION)
    model = modules.get("AutoModel") if isinstance(modules, Mapping) else None
    marked = [config, section] if isinstance(section, Mapping) else [config]
    return (isinstance(model, str) and model.startswith(MODULE)) or any(
        one.get(mark) is not None for one in marked for mark in MARKS
    )


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
        return {**config, "auto_map": {"AutoModel": f"{MODULE}{config['architectures'][0]}"}}


DIALECT = SpecForge()
