"""DSpark's keys and tensors: a Markov head, a confidence head, an anchor slot that predicts the first draft.

What stands as `block_size` in a file is the number of slots that the network runs over. Where the anchor's
slot predicts, that is the number of drafts; where it does not, the anchor counts beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dflash_core.checkpoint.keys import Keys, show
from dflash_core.spec import ConfidenceSpec, DraftSpec, MarkovSpec

ARCHITECTURE = "DSparkDraftModel"
PROJECTOR = "dspark"
WIDEST = 1 << 16
FROM, INTO = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
"""The tables of the token before, and of the token that is scored."""

KINDS = {
    "projector_type": (("dflash",), "another draft head"),
    "sample_from_anchor": ((False,), "an anchor slot that predicts too, as in DSpark"),
    "shift_label": ((False,), "slots that predict the next position, as in Domino and DSpark"),
}
"""The keys that say which kind of draft this is, and what they may say of one that is no DSpark draft."""


@dataclass(frozen=True)
class Heads:
    """What the keys describe."""

    anchor_predicts: bool
    markov: MarkovSpec | None


def read_heads(keys: Keys, named: bool) -> Heads:
    """Read and check them.

    A draft of SpecForge's `projector_type` dspark has an anchor slot that predicts and says its head's rank.
    Any other draft has either only where its own key says so.

    Args:
        named: whether the architecture already says that this is a DSpark draft.
    """
    allowed = (PROJECTOR,) if named else ("dflash", PROJECTOR)
    keys.locked({"projector_type": (allowed, "another draft head")})
    dspark = named or keys.find("projector_type") == PROJECTOR
    sampled, shifted = keys.maybe_flag("sample_from_anchor"), keys.maybe_flag("shift_label")
    predicts = dspark if sampled is None else sampled
    if shifted is not None and shifted != predicts:
        keys.fail(
            "shift_label",
            f"is {show(shifted)}: slots {'do' if shifted else 'do not'} predict the next position; but by "
            f"other keys this draft's anchor slot {'does' if predicts else 'does not'}. Keep the right one.",
        )
    return Heads(predicts, _markov(keys, dspark))


def write_heads(spec: DraftSpec) -> dict[str, Any]:
    """What `read_heads` reads of a draft whose anchor slot predicts, or of one with a Markov head."""
    if spec.markov is None and not spec.anchor_predicts:
        return {}
    if spec.markov is None:
        return {"markov_rank": 0}
    return {"markov_rank": spec.markov.rank, "markov_head_type": spec.markov.kind}


def read_flags(keys: Keys, drafts: int, markov: MarkovSpec | None) -> ConfidenceSpec | None:
    """DSpark's own confidence head, a linear layer, where its flags say that there is one."""
    keys.find("confidence_head_alpha")  # the weight of its loss
    with_markov = keys.maybe_flag("confidence_head_with_markov") is not False
    if not keys.maybe_flag("enable_confidence_head"):
        return None
    if with_markov and markov is None:
        keys.fail(
            "confidence_head_with_markov", "must be false, since there is no Markov head (markov_rank is 0)."
        )
    return ConfidenceSpec(None, ("before",) if with_markov else (), (1.0,) * drafts)


def write_flags(head: ConfidenceSpec | None) -> dict[str, Any]:
    """What `read_flags` reads; that there is none, where the head is another."""
    if head is None or head.hidden_size is not None or head.features not in ((), ("before",)):
        return {"enable_confidence_head": False}
    return {"enable_confidence_head": True, "confidence_head_with_markov": head.features != ()}


def markov_shapes(spec: DraftSpec, head: MarkovSpec) -> dict[str, tuple[int, ...]]:
    """Canonical names and shapes of the head's tensors."""
    return {FROM: (spec.vocab_size, head.rank), INTO: (spec.vocab_size, head.rank)}


def _markov(keys: Keys, required: bool) -> MarkovSpec | None:
    """The head; at rank 0 there is none. DSpark's programs disagree about its default, so it must be said."""
    rank = (
        keys.integer("markov_rank", 0, WIDEST) if required else keys.maybe_integer("markov_rank", 0, WIDEST)
    )
    keys.locked({"markov_head_type": (("vanilla",), "another Markov head")})
    return MarkovSpec(rank) if rank else None
