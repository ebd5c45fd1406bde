"""The keys that all layouts of a DFlash draft share: a Qwen3 body, taps, block, scales, DFlash2's parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from dflash_core.checkpoint.inert import LOCKED
from dflash_core.checkpoint.keys import Keys, same, show
from dflash_core.checkpoint.layers import LONGEST, MOST_LAYERS
from dflash_core.checkpoint.rope import read_rope, write_rope
from dflash_core.errors import CheckpointError
from dflash_core.spec import ConvSpec, DraftSpec, RopeSpec, SelectorSpec

WIDEST = 1 << 20
"""Largest width, head count or rank."""
MOST_TOKENS = 1 << 24
MOST_CANDIDATES = 256
MOST_TARGET_LAYERS = 4096
LONGEST_BLOCK = 1024
DTYPES = ("bfloat16", "float16", "float32")
SECOND = "DFlash2DraftModel"
"""The architecture of DFlash2 in every layout."""
TAP_HINT = "If these are Hugging Face hidden-state indices, subtract 1."


class Body(TypedDict):
    """Fields of `DraftSpec` that are read alike in every layout."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    mask_token_id: int
    block_size: int
    rope: RopeSpec
    rms_norm_eps: float
    hidden_act: str
    max_position_embeddings: int
    num_target_layers: int | None
    attention_bias: bool
    attention_sinks: bool
    attention_value_scale: float
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float | None
    conv: ConvSpec | None
    selector: SelectorSpec | None
    dtype: str


def read_body(keys: Keys, *, second: bool, block_size: int, anchor_predicts: bool = False) -> Body:
    """Read and check them.

    Args:
        second: whether this is a DFlash2 draft.
        block_size: the layout's own default.
        anchor_predicts: whether the layout's blocks leave out a slot, see `dspark`.
    """
    keys.locked(LOCKED)
    width = keys.integer("hidden_size", 1, WIDEST)
    heads, kv_heads, head_dim = _heads(keys)
    vocab = keys.integer("vocab_size", 1, MOST_TOKENS)
    positions = keys.maybe_integer("max_position_embeddings", 1, LONGEST) or 32768
    rope = read_rope(keys, positions)
    slots = keys.maybe_integer("block_size", 1 if anchor_predicts else 2, LONGEST_BLOCK) or block_size
    block = slots + anchor_predicts
    return Body(
        hidden_size=width,
        intermediate_size=keys.integer("intermediate_size", 1, WIDEST),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        mask_token_id=_mask(keys, vocab),
        block_size=block,
        rope=rope,
        rms_norm_eps=keys.maybe_number("rms_norm_eps", 0, 1) or 1e-6,
        hidden_act="silu",
        max_position_embeddings=positions,
        num_target_layers=keys.maybe_integer("num_target_layers", 1, MOST_TARGET_LAYERS),
        attention_bias=keys.maybe_flag("attention_bias") is True,
        attention_sinks=keys.maybe_flag("attention_sink_bias") is True,
        attention_value_scale=_scale(keys, "attention_value_scale"),
        input_embedding_scale=_scale(keys, "input_embedding_scale"),
        output_multiplier=_scale(keys, "output_multiplier"),
        final_logit_softcapping=_softcap(keys),
        conv=_conv(keys, width, block) if second else None,
        selector=_selector(keys, vocab) if second else None,
        dtype=_dtype(keys),
    )


def write_body(spec: DraftSpec) -> dict[str, Any]:
    """The Qwen3 fields."""
    return {
        "model_type": "qwen3",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": spec.hidden_act,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "attention_bias": spec.attention_bias,
        **write_rope(spec.rope),
        **({} if spec.num_target_layers is None else {"num_target_layers": spec.num_target_layers}),
    }


def write_draft(spec: DraftSpec) -> dict[str, Any]:
    """The fields that a Qwen3 config lacks, those at their default left out."""
    written: dict[str, Any] = {"mask_token_id": spec.mask_token_id}
    if spec.attention_sinks:
        written["attention_sink_bias"] = True
    for name in ("attention_value_scale", "input_embedding_scale", "output_multiplier"):
        if (value := getattr(spec, name)) != 1.0:
            written[name] = value
    if spec.final_logit_softcapping is not None:
        written["final_logit_softcapping"] = spec.final_logit_softcapping
    if spec.conv is not None:
        written |= {"conv_kernel_size": spec.conv.kernel_size, "conv_group_size": spec.conv.group_size}
    if spec.selector is not None:
        written |= {"selector_rank": spec.selector.rank, "selector_top_k": spec.selector.top_k}
    return written


def read_taps(keys: Keys, key: str, offset: int, num_target_layers: int | None) -> tuple[int, ...] | None:
    """Taps from a list of layer ids that are `offset` above ours; `None` where the key is absent."""
    ids = keys.maybe_list(key, int, MOST_TARGET_LAYERS)
    if ids is None:
        return None
    taps = tuple(entry - offset for entry in ids)
    if num_target_layers is not None and not all(0 <= tap < num_target_layers for tap in taps):
        keys.fail(
            key,
            f"is {show(ids)}, but the target has {num_target_layers} layers "
            f"({offset} to {num_target_layers - 1 + offset}).{'' if offset else ' ' + TAP_HINT}",
        )
    if not all(0 <= tap < MOST_TARGET_LAYERS for tap in taps):
        keys.fail(key, f"is {show(ids)}; layers count from {offset} to {MOST_TARGET_LAYERS - 1 + offset}.")
    if len(set(taps)) < len(taps):
        keys.fail(key, f"is {show(ids)}, which names a layer twice.")
    return taps


def default_taps(num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    """z-lab's rule for drafts that list no taps: spread evenly from 1 to the target's third last block."""
    if num_layers == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + index * span / (num_layers - 1)) for index in range(num_layers))


def read_count(keys: Keys) -> int:
    """The number of draft layers."""
    return keys.integer("num_hidden_layers", 1, MOST_LAYERS)


def architecture(keys: Keys, known: tuple[str, ...]) -> str:
    """The one architecture that the config names; it must be one of `known`."""
    names = keys.maybe_list("architectures", str, 1)
    if names is None:
        keys.fail("architectures", f"is missing; it must be one of {', '.join(known)}.")
    if names[0] not in known:
        keys.fail("architectures", f"is {show(names)}; understood are {', '.join(known)}.")
    return str(names[0])


def require_borrowable(keys: Keys, width: int, vocab: int) -> None:
    """Keys of layouts that take embedding and head from the target, which then must fit exactly."""
    target_width = keys.maybe_integer("target_hidden_size", 1, WIDEST)
    if target_width is not None and target_width != width:
        keys.fail(
            "target_hidden_size",
            f"is {target_width}, but hidden_size is {width}; a draft that borrows the target's embedding "
            "must have the target's width.",
        )
    rows = keys.maybe_integer("draft_vocab_size", 1, MOST_TOKENS)
    if rows is not None and rows != vocab:
        keys.fail(
            "draft_vocab_size",
            f"is {rows}, but vocab_size is {vocab}; only the speculators layout has a reduced vocabulary.",
        )


def kept(extra: Mapping[str, Any], inert: frozenset[str]) -> dict[str, Any]:
    """The inert keys of a spec that a layout may carry."""
    return {key: value for key, value in extra.items() if key in inert}


def _heads(keys: Keys) -> tuple[int, int, int]:
    heads = keys.integer("num_attention_heads", 1, WIDEST)
    kv_heads = keys.integer("num_key_value_heads", 1, WIDEST)
    if heads % kv_heads:
        keys.fail(
            "num_key_value_heads", f"is {kv_heads}, which does not divide num_attention_heads, {heads}."
        )
    head_dim = keys.integer("head_dim", 2, WIDEST)
    if head_dim % 2:
        keys.fail("head_dim", f"is {head_dim}; rotary embeddings need an even size.")
    return heads, kv_heads, head_dim


def _mask(keys: Keys, vocab: int) -> int:
    mask = keys.integer("mask_token_id", 0, MOST_TOKENS)
    if mask >= vocab:
        keys.fail("mask_token_id", f"is {mask}, but vocab_size is {vocab} (0 to {vocab - 1}).")
    return mask


def _scale(keys: Keys, key: str) -> float:
    value = keys.maybe_number(key, 0, 1e6)
    return 1.0 if value is None else value


def _softcap(keys: Keys) -> float | None:
    """0 is how some configs say that there is none."""
    key = "final_logit_softcapping"
    return None if same(keys.find(key), 0) else keys.maybe_number(key, 0, 1e6)


def _conv(keys: Keys, width: int, block: int) -> ConvSpec:
    size, group = (
        keys.integer("conv_kernel_size", 1, LONGEST_BLOCK),
        keys.integer("conv_group_size", 1, WIDEST),
    )
    if width % group:
        keys.fail("conv_group_size", f"is {group}, which does not divide hidden_size, {width}.")
    if size > block:
        keys.fail("conv_kernel_size", f"is {size}, more than block_size, {block}.")
    return ConvSpec(size, group)


def _selector(keys: Keys, vocab: int) -> SelectorSpec:
    # Trees compare all candidates of a slot with all of the slot before.
    most = min(MOST_CANDIDATES, vocab)
    return SelectorSpec(keys.integer("selector_rank", 1, WIDEST), keys.integer("selector_top_k", 1, most))


def _dtype(keys: Keys) -> str:
    """`dtype`, or `torch_dtype` as transformers 4 writes it."""
    found = [
        value.removeprefix("torch.")
        for key in ("dtype", "torch_dtype")
        if (value := keys.maybe_text(key, {*DTYPES, *(f"torch.{name}" for name in DTYPES)})) is not None
    ]
    if len(set(found)) > 1:
        raise CheckpointError(f"{keys.where}: dtype is {found[0]}, but torch_dtype is {found[1]}.")
    return found[0] if found else "bfloat16"
