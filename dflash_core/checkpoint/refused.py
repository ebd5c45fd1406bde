"""Drafts that are known by name and not understood, so that the message can say what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dflash_core.checkpoint.keys import show

YET = "not understood yet"

ARCHITECTURES = (
    (
        "Qwen3DSparkModel",
        "a DSpark draft of DeepSpec (its block counts drafts only, its anchor slot predicts)",
    ),
    ("Gemma4DSparkModel", "a DSpark draft of DeepSpec"),
    ("DSpark", "a DSpark draft of another body than Qwen3's"),
    ("DflashDraftModel", "a draft in the open speculator format"),
    ("Domino", "a Domino draft of SpecForge (prefix GRU head)"),
    ("Muse", "a Muse assistant"),
    ("MiMo", "a MiMo draft"),
    ("Laguna", "a Laguna draft"),
    ("Eagle", "an EAGLE draft"),
)
"""Part of an architecture's name -> what it is; the first that fits counts."""

KEYS = (
    ("open_spec_config_version", "a draft in the open speculator format"),
    ("dspark_block_size", "a DeepSeek-V4 target with a DSpark draft inside"),
    ("kv_native_architecture", "a draft that reads the target's keys and values"),
)
PROJECTORS = {"domino": "a Domino draft of SpecForge (prefix GRU head)"}

FILES = {"mask_embedding.pt": "a MiMo draft, whose mask embedding lies in a pickle of its own"}

TENSORS = (
    ("markov_head.", "of a Markov head that the config does not describe"),
    ("confidence_head.", "of a confidence head that the config does not describe"),
    ("prefix_gru.", "the GRU of a Domino draft"),
    ("embed_proj.", "the projection of a Domino draft"),
    ("qkv_proj", "a fused projection, as in Laguna drafts"),
    ("g_proj", "the attention gate of a Laguna draft"),
    ("aux_hidden_norms", "the tap norms of a Laguna draft"),
    ("encoder.fc", "the tap encoder of a Muse assistant"),
    ("encoder.output_norm_enc", "the tap encoder of a Muse assistant"),
    ("mtp.", "a draft inside a DeepSeek-V4 target"),
    ("mask_embedding", "the mask embedding of a MiMo draft"),
    ("verifier_", "a copy of the target, kept while training"),
    ("weight_scale", "a scale of quantised weights"),
    ("weight_packed", "packed quantised weights"),
    ("embed_tokens.", "an embedding, which this layout borrows from the target"),
    ("lm_head.", "a head, which this layout borrows from the target"),
)
"""Part of a tensor's name -> what it is."""


def refusal(config: Mapping[str, Any]) -> str | None:
    """What a config that no dialect recognises is, when we know; continues a sentence after its file."""
    names = config.get("architectures")
    for name in names if isinstance(names, list) else ():
        for mark, what in ARCHITECTURES:
            if isinstance(name, str) and mark in name:
                return f"architectures says that this is {what}, which is {YET}."
    kind = config.get("speculators_model_type")
    if isinstance(kind, str):
        return f"speculators_model_type is {show(kind)}; only dflash and dflash2 are understood."
    for key, what in KEYS:
        if key in config:
            return f"{key} says that this is {what}, which is {YET}."
    return None


def projector(config: Mapping[str, Any]) -> str | None:
    """The head that SpecForge's `projector_type` names, when it is one that is not understood."""
    section = config.get("dflash_config")
    for one, prefix in ((section, "dflash_config."), (config, "")):
        kind = one.get("projector_type") if isinstance(one, Mapping) else None
        if isinstance(kind, str) and kind in PROJECTORS:
            return f"{prefix}projector_type says that this is {PROJECTORS[kind]}, which is {YET}."
    return None


def refused_file(names: Iterable[str]) -> tuple[str, str] | None:
    """A file that changes the meaning of a checkpoint and is not understood: its name, and what it is."""
    return next(((name, FILES[name]) for name in names if name in FILES), None)


def foreign_tensor(name: str) -> str:
    """What a tensor that no spec has is, in brackets, when we know."""
    return next((f" ({what})" for mark, what in TENSORS if mark in name), "")
