"""The draft that is to be trained for a target."""

from collections.abc import Sequence
from typing import Any

from dflash_core.checkpoint.body import default_taps
from dflash_core.errors import SettingsError, UnsupportedError
from dflash_core.spec import ConvSpec, DraftSpec, LayerSpec, MarkovSpec, SelectorSpec
from dflash_core.target import TargetModel

TAPS = 5
CONV = ConvSpec(kernel_size=2, group_size=16)
CANDIDATES = 16


def draft_spec(
    target: TargetModel,
    layers: int,
    block_size: int,
    taps: Sequence[int] | None = None,
    mask_token_id: int | None = None,
    selector: int | None = None,
    markov: int | None = None,
    anchor_predicts: bool = False,
) -> DraftSpec:
    """A draft of so many layers, each like one of the target's.

    Args:
        taps: target layers that it reads; five, spread evenly, when `None`.
        mask_token_id: a token that the target's texts never have; the tokenizer's when `None`.
        selector: the rank of DFlash2's selector, which comes with convolutions; `None` for a first DFlash.
        markov: the rank of DSpark's Markov head; `None` for none.
        anchor_predicts: DSpark: the anchor's slot predicts the first draft.

    Raises:
        SettingsError: a value makes no sense for this target.
        UnsupportedError: the target does not say what its layers are like.
    """
    info = target.info
    shape: Any = getattr(target, "draft_shape", None)
    if shape is None or info.rope is None:
        raise UnsupportedError(
            f"{info.name} does not say what its layers are like, so no draft can be planned."
        )
    chosen = tuple(default_taps(info.num_layers, min(TAPS, info.num_layers - 3)) if taps is None else taps)
    if (
        not chosen
        or list(chosen) != sorted(set(chosen))
        or not 0 <= chosen[0] <= chosen[-1] < info.num_layers
    ):
        raise SettingsError(
            f"taps are {list(chosen)}; they must be rising layer numbers from 0 to {info.num_layers - 1}."
        )
    if not 1 <= layers <= info.num_layers:
        raise SettingsError(f"layers is {layers}; it must be from 1 to {info.num_layers}.")
    for name, rank in (("selector", selector), ("markov", markov)):
        if rank is not None and not 1 <= rank <= info.hidden_size:
            raise SettingsError(f"{name} is {rank}; its rank must be from 1 to {info.hidden_size}.")
    if selector is not None and (markov is not None or anchor_predicts):
        raise SettingsError(
            "A selector is DFlash2's; a Markov head and an anchor that predicts are DSpark's. Choose one."
        )
    mask = _mask_token(target) if mask_token_id is None else mask_token_id
    if not 0 <= mask < info.vocab_size:
        raise SettingsError(f"mask_token_id is {mask}; it must be from 0 to {info.vocab_size - 1}.")
    return DraftSpec(
        dialect="zlab",
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        layers=(LayerSpec(None, False),) * layers,
        taps=chosen,
        block_size=block_size,
        mask_token_id=mask,
        rope=info.rope,
        max_position_embeddings=info.max_positions,
        num_target_layers=info.num_layers,
        conv=None if selector is None else CONV,
        selector=None if selector is None else SelectorSpec(selector, CANDIDATES),
        markov=None if markov is None else MarkovSpec(markov),
        anchor_predicts=anchor_predicts,
        **shape(),
    )


def _mask_token(target: TargetModel) -> int:
    """A special token that no text has: the tokenizer's mask, or its last special token without a role."""
    tokenizer: Any = getattr(target, "tokenizer", None)
    if tokenizer is not None and tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    roles = (
        set()
        if tokenizer is None
        else {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    )
    template = str(getattr(tokenizer, "chat_template", "") or "")
    added = {} if tokenizer is None else tokenizer.added_tokens_decoder
    free = [
        i for i, token in added.items() if i not in roles and token.special and str(token) not in template
    ]
    if not free:
        raise SettingsError(
            f"{target.info.name} has no special token to spare; name one by its id: --mask-token-id."
        )
    return int(max(free))
