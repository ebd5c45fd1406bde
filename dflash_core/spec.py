"""The canonical description of a draft checkpoint. Every dialect is read into it, and written from it."""

from dataclasses import dataclass, field
from typing import Literal

ProposalHead = Literal["independent", "selector", "markov"]
MarkovKind = Literal["vanilla"]
"""DSpark's Markov heads; its gated and recurrent ones are not understood yet."""
ConfidenceFeature = Literal["slot", "log_prob", "before"]
"""What a confidence head may know of a slot beside its hidden state: which slot it is (one-hot), the draft's
log-probability of its token, and the Markov head's row of the token before it."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding. `linear` divides positions by `factor`; `yarn` follows Peng et al. 2023.

    The YaRN fields have the meaning and the defaults of transformers' `rope_parameters`.
    """

    theta: float
    kind: Literal["default", "linear", "yarn"] = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class LayerSpec:
    """What one draft layer sees: a window in tokens (`None` is all of the context); only the past, or not."""

    window: int | None
    causal: bool


@dataclass(frozen=True)
class ConvSpec:
    """DFlash2's grouped dynamic convolution."""

    kernel_size: int
    group_size: int


@dataclass(frozen=True)
class SelectorSpec:
    """DFlash2's candidate selector."""

    rank: int
    top_k: int


@dataclass(frozen=True)
class MarkovSpec:
    """DSpark's Markov head: what the token before adds to a logit, as a product of two tables [V, rank]."""

    rank: int
    kind: MarkovKind = "vanilla"


@dataclass(frozen=True)
class ConfidenceSpec:
    """What says how likely a slot's draft is accepted, given that all before it were.

    It is a two-layer MLP of this `hidden_size`, or one linear layer where that is `None`, as DSpark's.
    `temperatures` are one number a drafted slot: the logit is divided by it.
    """

    hidden_size: int | None
    features: tuple[ConfidenceFeature, ...]
    temperatures: tuple[float, ...]
    draft_sha256: str | None = None
    """Of the draft that it was fitted on, see `checkpoint.confidence.fingerprint`; `None` is not known."""


@dataclass(frozen=True)
class ProtocolSpec:
    """What a draft's config tells those who run it: that it drafts blocks by diffusion, and where prompts of
    different lengths are padded where they are padded."""

    padding_side: Literal["left"] = "left"


@dataclass(frozen=True)
class DraftSpec:
    """A block drafter, independent of how its checkpoint was written.

    `taps` are 0-based indices of the target blocks whose output is read, in the order of `fc`'s columns.
    `block_size` counts the anchor and the drafts after it, whether or not the anchor's slot predicts. `d2t`
    maps a reduced draft vocabulary to target ids and lives with the tensors (`draft_vocab_size < vocab_size`
    says that it is there).
    """

    dialect: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    layers: tuple[LayerSpec, ...]
    taps: tuple[int, ...]
    block_size: int
    mask_token_id: int
    rope: RopeSpec
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    num_target_layers: int | None = None
    target_hidden_size: int | None = None
    """Width of one tap; `None` means `hidden_size`."""
    attention_bias: bool = False
    attention_sinks: bool = False
    attention_value_scale: float = 1.0
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    conv: ConvSpec | None = None
    selector: SelectorSpec | None = None
    markov: MarkovSpec | None = None
    confidence: ConfidenceSpec | None = None
    protocol: ProtocolSpec | None = None
    draft_vocab_size: int | None = None
    """Rows of the draft's own head; `None` means the whole vocabulary."""
    owns_embedding: bool = False
    owns_head: bool = False
    anchor_predicts: bool = False
    """Whether a slot predicts the token after its own, as in DSpark: the network then runs over one slot less
    than a block has, since the last draft needs no slot."""
    target_name: str | None = None
    dtype: str = "bfloat16"
    extra: dict[str, object] = field(default_factory=dict)
    """Inert keys of the source config, kept so that writing in the same dialect loses nothing."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def tap_width(self) -> int:
        """Columns of `fc`: P * D of the target."""
        return len(self.taps) * (self.target_hidden_size or self.hidden_size)

    @property
    def head(self) -> ProposalHead:
        if self.selector is not None:
            return "selector"
        return "independent" if self.markov is None else "markov"

    @property
    def network_slots(self) -> int:
        """Slots that the network runs over for a whole block."""
        return self.block_size - self.anchor_predicts
