"""Facts about a target, read from its configuration."""

from collections.abc import Mapping
from typing import Any

from dflash_backends.transformers.anatomy import Anatomy
from dflash_core.spec import RopeSpec
from dflash_core.target import TargetInfo

UNBOUNDED = 2**31 - 1
"""`max_positions` of a model whose configuration names no limit."""

SCALING = (
    *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
    *("mscale", "mscale_all_dim", "truncate"),
)
"""Keys of `rope_parameters` that are also fields of `RopeSpec`."""


def read_info(parts: Anatomy) -> TargetInfo:
    """`TargetInfo` of a loaded model."""
    vocabulary, hidden = parts.embedding.shape
    return TargetInfo(
        name=parts.name,
        num_layers=len(parts.layers),
        hidden_size=hidden,
        vocab_size=vocabulary,
        max_positions=getattr(parts.config, "max_position_embeddings", None) or UNBOUNDED,
        rope=read_rope(parts.config),
        recurrent=bool(parts.mixers),
        trees=not parts.mixers,
        eos_token_ids=read_eos(parts),
        device=parts.device,
        dtype=parts.dtype,
    )


def read_eos(parts: Anatomy) -> tuple[int, ...]:
    """Tokens that end a generation: the generation settings', else the configuration's."""
    generation = getattr(parts.model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    if found is None:
        found = getattr(parts.config, "eos_token_id", None)
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)


def read_rope(config: Any) -> RopeSpec | None:
    """The rotary embedding of full-attention layers, or `None` when a `RopeSpec` cannot express it."""
    parameters: Mapping[str, Any] | None = getattr(config, "rope_parameters", None)
    if parameters is not None and "rope_theta" not in parameters:
        parameters = parameters.get("full_attention")  # one set a layer type
    if parameters is None or "rope_theta" not in parameters:
        return None
    kind = parameters.get("rope_type", "default")
    if kind not in ("default", "linear", "yarn") or parameters.get("partial_rotary_factor", 1.0) != 1.0:
        return None
    scaling = SCALING if kind == "yarn" else SCALING[:1] if kind == "linear" else ()
    given = {name: parameters[name] for name in scaling if parameters.get(name) is not None}
    return RopeSpec(theta=float(parameters["rope_theta"]), kind=kind, **given)
