"""SpecForge's layout: z-lab's with `block_size` at the top level, told apart by the marks of its trainer.

Its Domino drafts share the layout but not the meaning; see `refused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_core.checkpoint.dspark import PROJECTOR
from dflash_core.checkpoint.native import (
    SPECFORGE_MODULES,
    is_native,
    is_specforge,
    named,
    read_native,
    write_native,
)
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
        spec = read_native(config, where, self.name)
        if spec.markov is not None and not spec.anchor_predicts:
            raise CheckpointError(
                f"{where}: markov_rank is {spec.markov.rank}, but the draft's anchor slot does not predict, "
                "which SpecForge has no words for. Make projector_type dspark if it does predict."
            )
        return spec

    def write(self, spec: DraftSpec) -> dict[str, Any]:
        if spec.markov is not None and not spec.anchor_predicts:
            raise CheckpointError(
                "it has no words for a Markov head without an anchor slot that predicts. Keep it in z-lab's "
                "layout."
            )
        name = named(spec)
        config = write_native(spec, projector_type=PROJECTOR if spec.anchor_predicts else "dflash")
        return {**config, "auto_map": {"AutoModel": f"{SPECFORGE_MODULES[name]}{name}"}}


DIALECT = SpecForge()
