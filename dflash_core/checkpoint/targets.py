"""Facts about a target that lies on disk as a transformers folder, and its embedding and head."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash_core.checkpoint.body import MOST_TARGET_LAYERS, MOST_TOKENS, WIDEST
from dflash_core.checkpoint.files import CONFIG, INDEX, Folder, file_names, open_folder, read_json
from dflash_core.checkpoint.keys import Keys, Source
from dflash_core.checkpoint.layers import FULL, LONGEST
from dflash_core.checkpoint.rope import read_rope
from dflash_core.checkpoint.weights import FLOATS, find_weights, read_header, read_tensors, read_weight_map
from dflash_core.errors import CheckpointError
from dflash_core.spec import RopeSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dflash_core.checkpoint.weights import Entry

JSON_LIMIT = 64 << 20
"""Of a target's files: an index of many experts is long."""
PREFIXES = ("", "model.", "language_model.", "model.language_model.", "language_model.model.")
TEXT = ("text_config", "llm_config", "language_config")
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")


@dataclass(frozen=True)
class ConfigFacts:
    """What a target's config.json says; fields as in `dflash_core.target.TargetInfo`."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    rope: RopeSpec | None


def read_target(path: str | os.PathLike[str]) -> ConfigFacts:
    """Read a target's config; that of the text model where there are several.

    Raises:
        CheckpointError: there is no config, or it lacks a size.
    """
    folder = open_folder(path)
    config = read_json(folder, CONFIG, JSON_LIMIT)
    inner = next((config[name] for name in TEXT if isinstance(config.get(name), Mapping)), config)
    keys = Keys(folder.where(CONFIG), [Source("", inner), Source("", config)])
    return ConfigFacts(
        name=str(folder.path),
        num_layers=keys.integer("num_hidden_layers", 1, MOST_TARGET_LAYERS),
        hidden_size=keys.integer("hidden_size", 1, WIDEST),
        vocab_size=keys.integer("vocab_size", 1, MOST_TOKENS),
        max_positions=keys.integer("max_position_embeddings", 1, LONGEST),
        rope=read_target_rope(inner),
    )


def read_target_rope(config: Mapping[str, Any]) -> RopeSpec | None:
    """RoPE of a target's full-attention layers; `None` when it has none, or one that drafts cannot have."""
    if config.get("partial_rotary_factor") not in (None, 1.0):
        return None
    chosen = {key: config[key] for key in ROPE_KEYS if config.get(key) is not None}
    for key, value in chosen.items():
        if isinstance(value, Mapping) and isinstance(value.get(FULL), Mapping):
            chosen[key] = value[FULL]
    positions = config.get("max_position_embeddings")
    try:
        return read_rope(Keys("", [Source("", chosen)]), positions if type(positions) is int else 1)
    except CheckpointError:
        return None


def read_vocabulary(path: str | os.PathLike[str], vocab: int, width: int) -> tuple[Tensor, Tensor]:
    """A target's embedding [V, D] and head [V, D]; a head tied to the embedding is the embedding.

    Args:
        vocab, width: V and D that the draft expects.

    Raises:
        CheckpointError: the folder has no safetensors that hold them in a float dtype and this shape.
    """
    folder = open_folder(path)
    entries = _vocabulary_entries(folder)
    for name, entry in entries.items():
        if entry.shape != (vocab, width) or entry.dtype not in FLOATS:
            raise CheckpointError(
                f"{folder.where(entry.file)}: {name}.weight is {entry.dtype} {list(entry.shape)}; the draft "
                f"needs {' or '.join(FLOATS)} [{vocab}, {width}]."
            )
    tensors = read_tensors(folder, entries)
    embedding = tensors["embed_tokens"]
    return embedding, tensors.get("lm_head", embedding)


def _vocabulary_entries(folder: Folder) -> dict[str, Entry]:
    sharded = INDEX in file_names(folder)
    places = read_weight_map(folder, JSON_LIMIT) if sharded else find_weights(folder, JSON_LIMIT)
    found: dict[str, Entry] = {}
    for short in ("embed_tokens", "lm_head"):
        name = next((full for one in PREFIXES if (full := f"{one}{short}.weight") in places), None)
        if name is not None:
            place = places[name]
            header = read_header(folder, place, JSON_LIMIT) if isinstance(place, str) else {name: place}
            if name not in header:
                raise CheckpointError(f"{folder.where(INDEX)}: weight_map.{name} is not in {place}.")
            found[short] = header[name]
    if "embed_tokens" not in found:
        raise CheckpointError(f"{folder.path} has no tensor embed_tokens.weight that could be the embedding.")
    return found
