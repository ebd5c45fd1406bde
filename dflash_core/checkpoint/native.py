"""The layout that z-lab and SpecForge share: a Qwen3 config with a `dflash_config`, tensors of the body and
of DSpark's heads; embedding and head are the target's.

Every key is looked up in `dflash_config` first and then at the top level, as z-lab's own code does; where the
two differ, that is an error. Causality is `is_causal`, then `causal`, then the layer's type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_core.checkpoint.body import (
    SECOND,
    TAP_HINT,
    architecture,
    default_taps,
    kept,
    read_body,
    read_count,
    read_taps,
    require_borrowable,
    write_body,
    write_draft,
)
from dflash_core.checkpoint.confidence import (
    CONFIDENCE_SECTION,
    read_confidence,
    read_protocol,
    write_confidence,
    write_protocol,
)
from dflash_core.checkpoint.dspark import ARCHITECTURE as DSPARK
from dflash_core.checkpoint.dspark import KINDS, Heads, read_flags, read_heads, write_flags, write_heads
from dflash_core.checkpoint.inert import INERT
from dflash_core.checkpoint.keys import Keys, Source, show
from dflash_core.checkpoint.layers import read_layers, write_layers
from dflash_core.errors import CheckpointError
from dflash_core.spec import DraftSpec

FIRST = "DFlashDraftModel"
SECTION = "dflash_config"
BLOCK_SIZE = 16
"""The default of both where a config has none."""
SPECFORGE_MODULES = {FIRST: "modeling_dflash.", SECOND: "modeling_dflash.", DSPARK: "dspark."}
"""Where SpecForge keeps its models."""
SPECFORGE_MARKS = ("projector_type", "attention_mode", "attention_modes")


def is_native(config: Mapping[str, Any]) -> bool:
    """Whether a config describes a DFlash, DFlash2 or DSpark draft with the body at the top level."""
    names = config.get("architectures")
    nested = "speculators_model_type" in config or "transformer_layer_config" in config
    return names in ([FIRST], [SECOND], [DSPARK]) and not nested


def is_specforge(config: Mapping[str, Any]) -> bool:
    """Whether a config carries a mark of SpecForge's trainer."""
    modules = config.get("auto_map")
    section = config.get(SECTION)
    model = modules.get("AutoModel") if isinstance(modules, Mapping) else None
    marked = [config, section] if isinstance(section, Mapping) else [config]
    return (isinstance(model, str) and model.startswith(tuple(SPECFORGE_MODULES.values()))) or any(
        one.get(mark) is not None for one in marked for mark in SPECFORGE_MARKS
    )


def read_native(config: Mapping[str, Any], where: str, dialect: str) -> DraftSpec:
    """Read a config with the body at the top level and the rest in `dflash_config` or beside it."""
    top = Source("", config, INERT, read={SECTION, "auto_map"})
    section = config.get(SECTION)
    if section is not None and not isinstance(section, Mapping):
        raise CheckpointError(f"{where}: {SECTION} is {show(section)}; it must be an object.")
    keys = Keys(where, [Source(f"{SECTION}.", section or {}), top])
    name = architecture(keys, (FIRST, SECOND, DSPARK))
    if name == SECOND:
        keys.locked(KINDS)
        heads = Heads(anchor_predicts=False, markov=None)
    else:
        heads = read_heads(keys, named=name == DSPARK)
    body = read_body(
        keys, second=name == SECOND, block_size=BLOCK_SIZE, anchor_predicts=heads.anchor_predicts
    )
    require_borrowable(keys, body["hidden_size"], body["vocab_size"])
    count = read_count(keys)
    causal, fallback = keys.maybe_flag("is_causal"), keys.maybe_flag("causal")
    layers = read_layers(keys, count, causal if causal is not None else fallback)
    taps = _taps(keys, count, body["num_target_layers"])
    block = body["block_size"]
    flagged = None if name == SECOND else read_flags(keys, block - 1, heads.markov)
    confidence = read_confidence(keys, block, heads.markov is not None)
    if flagged and confidence and write_flags(confidence) != write_flags(flagged):
        keys.fail(
            CONFIDENCE_SECTION,
            "describes another head than enable_confidence_head and confidence_head_with_markov. Keep one.",
        )
    protocol = read_protocol(keys)
    _, extra = keys.rest()
    return DraftSpec(
        dialect=dialect,
        layers=layers,
        taps=taps,
        markov=heads.markov,
        anchor_predicts=heads.anchor_predicts,
        confidence=confidence or flagged,
        protocol=protocol,
        extra=extra,
        **body,
    )


def write_native(spec: DraftSpec, **more: Any) -> dict[str, Any]:
    """A config of this spec with the body at the top level; `more` goes into `dflash_config`.

    Raises:
        CheckpointError: the draft brings its own embedding, head or vocabulary, or layers that the keys of
            this layout cannot describe.
    """
    if spec.owns_embedding or spec.owns_head or spec.draft_vocab_size not in (None, spec.vocab_size):
        raise CheckpointError(
            "this layout borrows embedding and head from the target, but the draft has its own "
            f"(draft_vocab_size {spec.draft_vocab_size}). Keep it in the speculators layout."
        )
    heads = {} if spec.conv is not None else write_heads(spec)
    flags = write_flags(spec.confidence) if named(spec) == DSPARK else {}
    if spec.confidence is not None and not (
        flags.get("enable_confidence_head")
        and set(spec.confidence.temperatures) == {1.0}
        and spec.confidence.draft_sha256 is None
    ):
        more[CONFIDENCE_SECTION] = write_confidence(spec.confidence)
    return {
        **write_body(spec),
        **write_layers(spec.layers),
        **write_protocol(spec.protocol),
        **kept(spec.extra, INERT),
        "architectures": [named(spec)],
        "dtype": spec.dtype,
        "block_size": spec.network_slots,
        SECTION: {**write_draft(spec), **heads, **flags, "target_layer_ids": list(spec.taps), **more},
    }


def named(spec: DraftSpec) -> str:
    """The architecture that a draft is written as. A Markov head alone leaves it a first DFlash: a program
    that knows no such head does without it, or refuses its tensors. Where the anchor's slot predicts, it
    would take every slot for its neighbour."""
    if spec.conv is not None:
        return SECOND
    return DSPARK if spec.anchor_predicts else FIRST


def _taps(keys: Keys, count: int, num_target_layers: int | None) -> tuple[int, ...]:
    taps = read_taps(keys, "target_layer_ids", 0, num_target_layers)
    if taps is None:
        if num_target_layers is None:
            keys.fail("target_layer_ids", "is missing, and without num_target_layers it has no default.")
        taps = default_taps(num_target_layers, count)
        if [*taps] != sorted(set(taps)):
            keys.fail(
                "target_layer_ids",
                f"is missing; its default for {num_target_layers} layers is {show([*taps])}.",
            )
    indices = read_taps(keys, "eagle_aux_hidden_state_layer_ids", 1, num_target_layers)
    if indices is not None and indices != taps:
        keys.fail("eagle_aux_hidden_state_layer_ids", f"must be target_layer_ids + 1. {TAP_HINT}")
    return taps
