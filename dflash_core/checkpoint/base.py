"""A draft checkpoint in canonical form, and what a dialect must be able to do.

Canonical tensor names are z-lab's (`fc.weight`, `layers.0.self_attn.q_proj.weight`, ...; see `shapes`), and
beside them `embed_tokens.weight`, `lm_head.weight` and `d2t` (int64 [draft vocabulary], absolute target ids)
where the draft brings its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dflash_core.spec import DraftSpec

if TYPE_CHECKING:
    from torch import Tensor

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class DraftCheckpoint:
    """A checkpoint in memory: canonical names, the dtypes of the file."""

    spec: DraftSpec
    tensors: Mapping[str, Tensor]
    path: Path | None = None


class Dialect(Protocol):
    """One on-disk layout. Pure functions of parsed JSON and of tensors; no file access."""

    name: str

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Whether this config.json is of this dialect; at most one dialect may say yes."""
        ...

    def read(self, config: Mapping[str, Any], where: str) -> DraftSpec:
        """Raises CheckpointError naming `where` and the key, for what is missing, wrong or not understood."""
        ...

    def names(self, spec: DraftSpec) -> Mapping[str, str]:
        """Canonical tensor name -> name on disk, for exactly the tensors that this spec must have."""
        ...

    def optional(self, spec: DraftSpec) -> Mapping[str, str]:
        """The same for tensors that the layout may carry beside those: the draft's own embedding and head
        (a layout that always borrows the target's has neither), and redundant ones that `decode` drops."""
        ...

    def decode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors under canonical names but in the dialect's meaning -> canonical meaning (e.g. `d2t`)."""
        ...

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `decode`, with tensors the layout carries redundantly (e.g. `t2d`) added."""
        ...

    def write(self, spec: DraftSpec) -> dict[str, Any]:
        """config.json of this spec. Raises CheckpointError for what the layout cannot express."""
        ...
