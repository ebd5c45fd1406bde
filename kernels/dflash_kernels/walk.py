"""Left to right through the slots of a block, each scored after the token picked before it."""

from collections.abc import Callable

import torch
from torch import Tensor

from dflash_kernels.candidate_probs.reference import candidate_probs
from dflash_kernels.draw.reference import draw


def walk(
    ids: Tensor,
    anchors: Tensor,
    score: Callable[[int, Tensor], Tensor],
    temperature: Tensor | None,
    uniforms: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Pick a candidate of every slot.

    Args:
        ids: [B, S, K] int64, the candidates' target ids.
        anchors: [B] int64, the token before slot 0.
        score: slot and the tokens [B] before it -> scores [B, K] float32 of its candidates.
        temperature: [B] float32; `None` is all greedy. Rows at 0 are greedy.
        uniforms: [B, S] float64 in [0, 1), the noise of every slot; given with `temperature`.

    Returns:
        picks: [B, S] int64, indices of candidates.
        scores: [B, S, K] float32; what slot s was picked from is their softmax at the row's temperature.
    """
    before = anchors
    picks, scores = [], []
    for slot in range(ids.shape[1]):
        scored = score(slot, before)
        if temperature is None or uniforms is None:
            pick = scored.argmax(-1)
        else:
            pick = draw(candidate_probs(scored, temperature), uniforms[:, slot])
        before = ids[:, slot].gather(1, pick[:, None])[:, 0]
        picks.append(pick)
        scores.append(scored)
    return torch.stack(picks, 1), torch.stack(scores, 1)
