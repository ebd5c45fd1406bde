"""The distribution that tokens are sampled from."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.sampling_probs import reference

__all__ = ["sampling_probs"]

_IMPLS = {"reference": reference.sampling_probs}


def sampling_probs(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    *,
    filtered: bool = True,
    max_top_k: int = 0,
    impl: Impl = "auto",
) -> Tensor:
    """Temperature, then top-k, top-p and min-p, as transformers' warpers apply them one after the other.

    Top-k keeps every token as likely as the k-th. Top-p drops the least likely tokens as long as what is
    dropped stays within 1 - top_p; of equally likely tokens those with the smaller id go first (transformers
    leaves that to an unstable sort). Min-p drops tokens less likely than min_p times the likeliest.

    Args:
        logits: [B, N, V] floats; each row has a finite maximum.
        temperature: [B] floats; a row of 0 puts all mass on the (first) largest logit.
        top_k: [B] int64; 0 is off, and so is anything of at least V.
        top_p: [B] floats in (0, 1]; 1 is off.
        min_p: [B] floats in [0, 1]; 0 is off.
        filtered: host flag; `False` says that every filter of every request is off, and skips them.
        max_top_k: the largest of `top_k`, where the host knows it: a hint for speed, never for the result.

    Returns:
        [B, N, V] float32; rows sum to 1.
    """
    run = choose("sampling_probs", impl, logits, _IMPLS)
    return run(logits, temperature, top_k, top_p, min_p, filtered, max_top_k)
