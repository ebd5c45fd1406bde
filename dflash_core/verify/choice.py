"""What the target itself says at every node."""

from torch import Tensor

from dflash_core.sampling import SamplingBatch
from dflash_kernels.argmax import argmax
from dflash_kernels.draw import draw
from dflash_kernels.sampling_probs import sampling_probs
from dflash_kernels.uniform import TARGET, uniform


def target_probs(logits: Tensor, sampling: SamplingBatch, rows: Tensor | None = None) -> Tensor:
    """The distributions that the target samples from.

    Args:
        logits: [B, N, V].
        rows: [R] int64, the requests wanted; all of them by default.

    Returns:
        [R, N, V] float32; one-hot for greedy requests.
    """
    given = (logits, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    logits, *settings = given if rows is None else (x[rows] for x in given)
    return sampling_probs(logits, *settings, filtered=sampling.filtered, max_top_k=sampling.max_top_k)


def target_choice(logits: Tensor, depths: Tensor, sampling: SamplingBatch) -> Tensor:
    """The target's own token after every node: its argmax, or a draw with the noise of that token's position.

    Args:
        logits: [B, N, V].
        depths: [B, N] int64.

    Returns:
        [B, N] int64.
    """
    if sampling.greedy:
        return argmax(logits)
    noise = uniform(sampling.seeds, sampling.decided(depths), TARGET)
    rows = sampling.sampled
    if rows is None:
        return draw(target_probs(logits, sampling), noise)
    return argmax(logits).index_copy(0, rows, draw(target_probs(logits, sampling, rows), noise[rows]))
