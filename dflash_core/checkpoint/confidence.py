"""The keys and tensors of a confidence head, and what a config says about how its draft is to be run.

The head is a two-layer MLP, `down(silu(up(x)))`, or DSpark's linear layer, `proj(x)`. Its input x is the
hidden state that predicts a draft (after the final norm), and behind it the features that the config lists.
`dflash_config.confidence_head` describes it. DSpark's own is described by flags (see `dspark`), which have no
words for temperatures.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from dflash_core.checkpoint.keys import Keys, show
from dflash_core.errors import CheckpointError
from dflash_core.spec import ConfidenceFeature, ConfidenceSpec, DraftSpec, ProtocolSpec

if TYPE_CHECKING:
    from torch import Tensor

CONFIDENCE_SECTION = "confidence_head"
CONFIDENCE_PREFIX = "confidence_head."
ACTIVATION = "silu"
MLP, LINEAR = "mlp", "linear"
FEATURES: tuple[ConfidenceFeature, ...] = get_args(ConfidenceFeature)
OURS: tuple[ConfidenceFeature, ...] = ("slot", "log_prob")
"""Those that a head of any draft may have; DSpark's other one is its Markov head's."""
WIDEST = 1 << 16
BLOCK_DIFFUSION, PADDING = "block_diffusion", "padding_side"


def read_confidence(keys: Keys, block_size: int, markov: bool) -> ConfidenceSpec | None:
    """The head that a config describes; `None` where it describes none.

    Args:
        markov: whether the draft has a Markov head, whose rows it may then take.
    """
    section = keys.section(CONFIDENCE_SECTION)
    if section is None:
        return None
    width = None
    if section.maybe_text("kind", {MLP, LINEAR}) != LINEAR:
        width = section.integer("hidden_size", 1, WIDEST)
        section.maybe_text("activation", {ACTIVATION})
    features, temperatures = (
        _features(section, FEATURES if markov else OURS),
        _temperatures(section, block_size),
    )
    draft = section.maybe_text("draft_sha256")
    section.rest()
    return ConfidenceSpec(width, features, temperatures, draft)


def write_confidence(head: ConfidenceSpec) -> dict[str, Any]:
    """What `read_confidence` reads."""
    mlp = {"hidden_size": head.hidden_size, "activation": ACTIVATION}
    return {
        **({"kind": LINEAR} if head.hidden_size is None else mlp),
        "features": list(head.features),
        "temperatures": list(head.temperatures),
        **({} if head.draft_sha256 is None else {"draft_sha256": head.draft_sha256}),
    }


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 of a draft without its confidence head, by which the head knows what it was fitted on.

    Floats are taken in bfloat16, so that a draft that is kept in another dtype is the same one.

    Args:
        tensors: by canonical name.
    """
    import torch

    found = hashlib.sha256()
    for name in sorted(name for name in tensors if not name.startswith(CONFIDENCE_PREFIX)):
        tensor = tensors[name].detach().cpu()
        kept = tensor.bfloat16() if tensor.is_floating_point() else tensor
        found.update(f"{name} {list(kept.shape)} {kept.dtype}\n".encode())
        found.update(kept.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def head_doubts(spec: DraftSpec, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """That a head was fitted on another draft, where it says which."""
    known = None if spec.confidence is None else spec.confidence.draft_sha256
    if known is not None and known != fingerprint(tensors):
        yield (
            "the confidence head was fitted on a draft with other weights (draft_sha256), so it does not "
            "know what is accepted of this one. Fit one to this draft with `dflash-core confidence`."
        )


def confidence_inputs(spec: DraftSpec, head: ConfidenceSpec) -> int:
    """Numbers that the head takes a slot.

    Raises:
        CheckpointError: it wants to know what only a Markov head can tell, and there is none.
    """
    if "before" in head.features and spec.markov is None:
        raise CheckpointError(
            "The confidence head's feature before is a row of a Markov head, but the draft has no such head "
            "(markov_rank)."
        )
    rank = 0 if spec.markov is None else spec.markov.rank
    widths: Mapping[ConfidenceFeature, int] = {"slot": spec.block_size - 1, "log_prob": 1, "before": rank}
    return spec.hidden_size + sum(widths[feature] for feature in head.features)


def confidence_shapes(spec: DraftSpec, head: ConfidenceSpec) -> dict[str, tuple[int, ...]]:
    """Canonical names and shapes of the head's tensors."""
    inputs = confidence_inputs(spec, head)
    if head.hidden_size is None:
        return {f"{CONFIDENCE_PREFIX}proj.weight": (1, inputs), f"{CONFIDENCE_PREFIX}proj.bias": (1,)}
    return {
        f"{CONFIDENCE_PREFIX}up.weight": (head.hidden_size, inputs),
        f"{CONFIDENCE_PREFIX}up.bias": (head.hidden_size,),
        f"{CONFIDENCE_PREFIX}down.weight": (1, head.hidden_size),
        f"{CONFIDENCE_PREFIX}down.bias": (1,),
    }


def confidence_parameters(spec: DraftSpec, head: ConfidenceSpec) -> int:
    """How many numbers the head's tensors have."""
    return sum(math.prod(shape) for shape in confidence_shapes(spec, head).values())


def read_protocol(keys: Keys) -> ProtocolSpec | None:
    """How the draft is to be run, where its config says so.

    `block_diffusion` can only be true: a draft that is anything else is not one that this package knows.
    """
    block, side = keys.maybe_flag(BLOCK_DIFFUSION), keys.maybe_text(PADDING)
    if block is False:
        keys.fail(
            BLOCK_DIFFUSION, "is false, but this is a block-diffusion draft. Remove the key, or make it true."
        )
    if side not in (None, "left"):
        keys.fail(
            PADDING,
            f"is {show(side)}; a block follows its prompt's last token, so prompts that are padded must be "
            "padded on the left.",
        )
    return None if block is None and side is None else ProtocolSpec()


def write_protocol(protocol: ProtocolSpec | None) -> dict[str, Any]:
    """What `read_protocol` reads."""
    return {} if protocol is None else {BLOCK_DIFFUSION: True, PADDING: protocol.padding_side}


def _features(section: Keys, known: tuple[ConfidenceFeature, ...]) -> tuple[ConfidenceFeature, ...]:
    given = section.find("features")
    features = [] if given is None else given
    found = [one for one in known if isinstance(features, list) and one in features]
    if not isinstance(features, list) or sorted(found) != sorted(map(str, features)):
        section.fail("features", f"is {show(given)}; understood are {', '.join(known)}, each once.")
    return tuple(features)


def _temperatures(section: Keys, block_size: int) -> tuple[float, ...]:
    """One a drafted slot, all 1 where there are none."""
    values = section.find("temperatures")
    if values is None:
        return (1.0,) * (block_size - 1)
    fine = isinstance(values, list) and all(
        type(one) in (int, float) and math.isfinite(one) and one > 0 for one in values
    )
    if not fine or len(values) != block_size - 1:
        section.fail(
            "temperatures",
            f"is {show(values)}; it must be {block_size - 1} numbers above 0, one a drafted slot.",
        )
    return tuple(float(one) for one in values)
