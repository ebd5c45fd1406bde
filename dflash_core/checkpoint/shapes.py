"""Canonical tensor names and shapes of a spec."""

from __future__ import annotations

from dflash_core.checkpoint.base import EMBEDDING, HEAD
from dflash_core.checkpoint.confidence import CONFIDENCE_PREFIX, confidence_shapes
from dflash_core.checkpoint.dspark import markov_shapes
from dflash_core.spec import DraftSpec

Shape = tuple[int, ...]

D2T = "d2t"
T2D = "t2d"
INTEGERS = {D2T: "I64", T2D: "BOOL"}
"""The tensors that are no floats, and the dtype they must have."""

PARTS = (
    ("confidence head", (CONFIDENCE_PREFIX,)),
    ("embedding", (EMBEDDING,)),
    ("head", (HEAD, D2T, T2D)),
    ("selector", ("candidate_selector.",)),
    ("Markov head", ("markov_head.",)),
    ("fc", ("fc.",)),
    ("attention", (".self_attn.",)),
    ("mlp", (".mlp.",)),
    ("convolutions", ("_conv.",)),
    ("norms", ("norm.weight",)),
)
"""Parts of a draft, and what the names of their tensors contain; the first that fits counts."""


def reduced(spec: DraftSpec) -> bool:
    """Whether the draft's head covers a part of the vocabulary only, listed in `d2t`."""
    return spec.draft_vocab_size is not None and spec.draft_vocab_size < spec.vocab_size


def body_shapes(spec: DraftSpec) -> dict[str, Shape]:
    """The tensors of every draft of this spec, whatever its layout: all but embedding, head and `d2t`."""
    width = spec.hidden_size
    shapes: dict[str, Shape] = {
        "fc.weight": (width, spec.tap_width),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    for index in range(spec.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer_shapes(spec).items()}
    if spec.selector is not None:
        shapes["candidate_selector.hidden_projection.weight"] = (spec.selector.rank, width)
        for codebook in ("predecessor_codebook", "successor_codebook"):
            shapes[f"candidate_selector.{codebook}"] = (spec.vocab_size, spec.selector.rank)
    if spec.markov is not None:
        shapes |= markov_shapes(spec, spec.markov)
    if spec.confidence is not None:
        shapes |= confidence_shapes(spec, spec.confidence)
    return shapes


def own_shapes(spec: DraftSpec) -> dict[str, Shape]:
    """Embedding, head and vocabulary maps, as they are where a draft brings them."""
    rows = spec.draft_vocab_size or spec.vocab_size
    return {
        EMBEDDING: (spec.vocab_size, spec.hidden_size),
        HEAD: (rows, spec.hidden_size),
        D2T: (rows,),
        T2D: (spec.vocab_size,),
    }


def owned(spec: DraftSpec) -> list[str]:
    """Which of `own_shapes` a checkpoint of this spec must have."""
    named = ((EMBEDDING, spec.owns_embedding), (HEAD, spec.owns_head), (D2T, reduced(spec)))
    return [name for name, there in named if there]


def tensor_shapes(spec: DraftSpec) -> dict[str, Shape]:
    """Canonical name -> shape, of exactly the tensors that a checkpoint of this spec must have."""
    own = own_shapes(spec)
    return body_shapes(spec) | {name: own[name] for name in owned(spec)}


def part_of(name: str) -> str:
    """The part of a draft that a canonical tensor name belongs to."""
    return next(part for part, marks in PARTS if any(mark in name for mark in marks))


def _layer_shapes(spec: DraftSpec) -> dict[str, Shape]:
    width, inner = spec.hidden_size, spec.intermediate_size
    queries, values = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (values, width),
        "self_attn.v_proj.weight": (values, width),
        "self_attn.o_proj.weight": (width, queries),
        "self_attn.q_norm.weight": (spec.head_dim,),
        "self_attn.k_norm.weight": (spec.head_dim,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    if spec.attention_bias:
        rows = {"q_proj": queries, "k_proj": values, "v_proj": values, "o_proj": width}
        shapes |= {f"self_attn.{name}.bias": (size,) for name, size in rows.items()}
    if spec.attention_sinks:
        shapes["self_attn.attention_sink_bias"] = (spec.num_heads,)
    if spec.conv is not None:
        size, groups = spec.conv.kernel_size, width // spec.conv.group_size
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"{name}.base_kernel"] = (2, size, width)
            shapes[f"{name}.kernel_projection.weight"] = (2 * size * groups, width)
    return shapes
