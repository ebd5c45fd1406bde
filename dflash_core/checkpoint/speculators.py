"""The speculators library's layout: a nested body, layer ids one above ours, embedding and head in the file.

The head may cover a reduced vocabulary: `d2t` then holds, for each of its rows, target id minus row number,
and `t2d` marks the target ids that have a row. Causality is `sliding_window_non_causal`, which is about
sliding layers only; full layers are bidirectional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dflash_core.checkpoint.base import EMBEDDING, HEAD
from dflash_core.checkpoint.body import (
    MOST_TOKENS,
    SECOND,
    WIDEST,
    kept,
    read_body,
    read_count,
    read_taps,
    write_body,
    write_draft,
)
from dflash_core.checkpoint.confidence import read_protocol, write_protocol
from dflash_core.checkpoint.dspark import KINDS
from dflash_core.checkpoint.inert import INERT, SPECULATORS_INERT
from dflash_core.checkpoint.keys import Keys, Source, show
from dflash_core.checkpoint.layers import read_layers, write_layers
from dflash_core.checkpoint.shapes import D2T, T2D, reduced, tensor_shapes
from dflash_core.errors import CheckpointError
from dflash_core.spec import DraftSpec, LayerSpec

if TYPE_CHECKING:
    from torch import Tensor

MARK = "speculators_model_type"
SECTION = "transformer_layer_config"
RUNNING = "speculators_config"
FIRST_ARCHITECTURES = ("DFlashSpeculator", "DFlashDraftModel")
BLOCK_SIZE = 8
METHOD_KEYS = frozenset({"accept_tolerance", "proposal_type", "speculative_tokens", "verifier_accept_k"})


class Speculators:
    """DFlash and DFlash2 drafts of the speculators library."""

    name = "speculators"

    def matches(self, config: Mapping[str, Any]) -> bool:
        return config.get(MARK) in ("dflash", "dflash2")

    def read(self, config: Mapping[str, Any], where: str) -> DraftSpec:
        body_section = config.get(SECTION)
        if not isinstance(body_section, Mapping):
            raise CheckpointError(f"{where}: {SECTION} is {show(body_section)}; it must be an object.")
        top = Source("", config, SPECULATORS_INERT)
        top.read.update((SECTION, MARK, RUNNING))
        keys = Keys(where, [Source(f"{SECTION}.", body_section, INERT), top])
        second = config[MARK] == "dflash2"
        _architecture(keys, second)
        keys.locked(KINDS)
        body = read_body(keys, second=second, block_size=BLOCK_SIZE)
        count = read_count(keys)
        loose = keys.maybe_flag("sliding_window_non_causal")
        layers = _with_causality(read_layers(keys, count, None), second if loose is None else loose)
        taps = read_taps(keys, "aux_hidden_state_layer_ids", 1, body["num_target_layers"])
        if taps is None:
            keys.fail("aux_hidden_state_layer_ids", "is missing; it must list target layers, counted from 1.")
        rows = _draft_vocabulary(keys, body["vocab_size"])
        width = keys.maybe_integer("target_hidden_size", 1, WIDEST)
        protocol = read_protocol(keys)
        target = _running(keys, body["block_size"], str(config[MARK]))
        nested_extra, top_extra = keys.rest()
        running = {RUNNING: config[RUNNING]} if isinstance(config.get(RUNNING), Mapping) else {}
        return DraftSpec(
            dialect=self.name,
            layers=layers,
            taps=taps,
            target_hidden_size=width if width != body["hidden_size"] else None,
            draft_vocab_size=rows if rows != body["vocab_size"] else None,
            owns_head=rows is not None and rows < body["vocab_size"],
            target_name=target,
            protocol=protocol,
            extra={**nested_extra, self.name: top_extra | running},
            **body,
        )

    def names(self, spec: DraftSpec) -> Mapping[str, str]:
        return {name: name for name in tensor_shapes(spec)}

    def optional(self, spec: DraftSpec) -> Mapping[str, str]:
        maps = (T2D,) if reduced(spec) else ()
        return {name: name for name in (EMBEDDING, HEAD, *maps)}

    def decode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        import torch

        decoded = dict(tensors)
        marks = decoded.pop(T2D, None)
        if D2T in decoded:
            decoded[D2T] = decoded[D2T] + torch.arange(len(decoded[D2T]))
            if marks is not None and not torch.equal(marks.nonzero()[:, 0], decoded[D2T].sort().values):
                raise CheckpointError("t2d does not mark exactly the target ids that d2t leads to.")
        return decoded

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        import torch

        encoded = dict(tensors)
        if D2T in encoded:
            ids = encoded[D2T]
            encoded[D2T] = ids - torch.arange(len(ids))
            if EMBEDDING in encoded:
                marks = torch.zeros(len(encoded[EMBEDDING]), dtype=torch.bool)
                encoded[T2D] = marks.index_fill(0, ids, True)
        return encoded

    def write(self, spec: DraftSpec) -> dict[str, Any]:
        if spec.attention_sinks or spec.attention_value_scale != 1.0:
            raise CheckpointError("it has no words for attention sinks and a value scale.")
        if spec.confidence is not None:
            raise CheckpointError("it has no words for a confidence head.")
        kind = "dflash" if spec.conv is None else "dflash2"
        loose = _looseness(spec)
        nested = {
            **write_body(spec),
            **write_layers([replace(one, causal=one.window is not None) for one in spec.layers]),
        }
        top = spec.extra.get(self.name)
        top = top if isinstance(top, Mapping) else {}
        return {
            **kept(top, SPECULATORS_INERT),
            MARK: kind,
            "architectures": [FIRST_ARCHITECTURES[0] if spec.conv is None else SECOND],
            "dtype": spec.dtype,
            "block_size": spec.block_size,
            "aux_hidden_state_layer_ids": [tap + 1 for tap in spec.taps],
            "draft_vocab_size": spec.draft_vocab_size or spec.vocab_size,
            "target_hidden_size": spec.target_hidden_size,
            "sliding_window_non_causal": loose,
            "sample_from_anchor": False,
            **write_draft(spec),
            **write_protocol(spec.protocol),
            RUNNING: _write_running(top.get(RUNNING), spec, kind),
            SECTION: {**nested, **kept(spec.extra, INERT)},
        }


def _architecture(keys: Keys, second: bool) -> None:
    names = keys.maybe_list("architectures", str, 1)
    known = (SECOND,) if second else FIRST_ARCHITECTURES
    if names is not None and names[0] not in known:
        keys.fail("architectures", f"is {show(names)}; understood here are {', '.join(known)}.")


def _draft_vocabulary(keys: Keys, vocab: int) -> int | None:
    rows = keys.maybe_integer("draft_vocab_size", 1, MOST_TOKENS)
    if rows is not None and rows > vocab:
        keys.fail("draft_vocab_size", f"is {rows}, more than vocab_size, {vocab}.")
    return rows


def _with_causality(layers: tuple[LayerSpec, ...], loose: bool) -> tuple[LayerSpec, ...]:
    return tuple(replace(one, causal=one.window is not None and not loose) for one in layers)


def _looseness(spec: DraftSpec) -> bool:
    sliding = {one.causal for one in spec.layers if one.window is not None}
    full = {one.causal for one in spec.layers if one.window is None}
    if True in full or len(sliding) > 1:
        raise CheckpointError(
            "full layers are bidirectional there, and sliding layers all causal or all not; this draft's "
            "layers differ."
        )
    return False in sliding


def _running(keys: Keys, block_size: int, kind: str) -> str | None:
    """Check `speculators_config`, which is about how to run the draft; gives the target's name."""
    section = keys.section(RUNNING, {"default_proposal_method"})
    if section is None:
        return None
    section.maybe_text("algorithm", {kind})
    methods = section.find("proposal_methods")
    if methods is not None and not (
        isinstance(methods, list) and all(isinstance(one, Mapping) for one in methods)
    ):
        section.fail("proposal_methods", f"is {show(methods)}; it must be a list of objects.")
    for method in methods or ():
        one = Keys(keys.where, [Source(f"{RUNNING}.proposal_methods.", method, METHOD_KEYS)])
        one.maybe_integer("speculative_tokens", 1, block_size - 1)
        one.rest()
    verifier = section.section("verifier")  # facts about the target; all but its name are for information
    section.rest()
    return None if verifier is None else verifier.maybe_text("name_or_path")


def _write_running(kept_section: object, spec: DraftSpec, kind: str) -> dict[str, Any]:
    section = dict(kept_section) if isinstance(kept_section, Mapping) else {}
    verifier = section.get("verifier")
    return {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": spec.block_size - 1}],
        **section,
        "verifier": {**(verifier if isinstance(verifier, Mapping) else {}), "name_or_path": spec.target_name},
    }


DIALECT = Speculators()
