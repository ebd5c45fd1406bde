"""A checkpoint layout: z-lab's, with an architecture and tensor names of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from dflash_core.plugins import provider
from dflash_core.spec import DraftSpec

ARCHITECTURE = "PrefixedDraft"
PREFIX = "draft."


class Prefixed:
    """Reads and writes through z-lab's dialect and adds what differs."""

    name = "prefixed"

    def matches(self, config: Mapping[str, Any]) -> bool:
        return config.get("architectures") == [ARCHITECTURE]

    def read(self, config: Mapping[str, Any], where: str) -> DraftSpec:
        plain: DraftSpec = _zlab().read({**config, "architectures": ["DFlashDraftModel"]}, where)
        return replace(plain, dialect=self.name)

    def names(self, spec: DraftSpec) -> Mapping[str, str]:
        return {name: PREFIX + disk for name, disk in _zlab().names(spec).items()}

    def optional(self, spec: DraftSpec) -> Mapping[str, str]:
        return {name: PREFIX + disk for name, disk in _zlab().optional(spec).items()}

    def decode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def write(self, spec: DraftSpec) -> dict[str, Any]:
        return {**_zlab().write(spec), "architectures": [ARCHITECTURE]}


def _zlab() -> Any:
    return provider("dialects", "zlab")


DIALECT = Prefixed()
