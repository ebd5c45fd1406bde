"""Logits processors at every node of a tree, each with the prefix that leads to that node."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from dflash_core.errors import RequestError
from dflash_core.tree import TokenTree


class LogitsProcessor(Protocol):
    """What transformers' `LogitsProcessor` objects are, and any function of the same arguments.

    It must be a function of its arguments: it sees several continuations of one request side by side, also
    such as will not be committed, so it must not remember earlier calls or rely on the number of its rows.
    """

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, /) -> Tensor:
        """
        Args:
            input_ids: [n, T] int64, whole sequences from the first prompt token on.
            scores: [n, V] float32, of the token that follows; a copy that may be written to.

        Returns:
            [n, V] floats.
        """
        ...


def apply_processors(
    tree: TokenTree,
    logits: Tensor,
    prefixes: Sequence[Sequence[int]],
    processors: Sequence[Sequence[LogitsProcessor] | None],
) -> Tensor:
    """Logits as plain decoding would see them after its processors, at every node.

    They come before temperature and the sampling filters, in the order given. Nodes that lie beyond a token
    which a processor has excluded (a score of -inf) can never be reached; no processor is asked about them.
    Processors are Python, so the tree is read by the host, once a depth; without any the call costs nothing.

    Args:
        logits: [B, N, V] floats.
        prefixes: per request its committed tokens, the anchor last; only looked at where it has processors.
        processors: per request; `None` or empty for a request without.

    Returns:
        [B, N, V]: `logits` itself when no request has processors, else a copy of at least float32.

    Raises:
        RequestError: a processor raised, or did not answer with scores of the shape it was given of which at
            least one a row is finite.
    """
    if not any(processors):
        return logits
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for row, own in enumerate(processors):
        if own:
            _process_request(tree, row, scores[row], prefixes[row], own)
    return scores


def _process_request(
    tree: TokenTree, row: int, scores: Tensor, prefix: Sequence[int], processors: Sequence[LogitsProcessor]
) -> None:
    """Rewrite `scores` [N, V] depth by depth, so that a node's parent has been processed before it."""
    real = int(tree.num_nodes[row])
    tokens, parents, depths = (x[row, :real] for x in (tree.tokens, tree.parents, tree.depths))
    sequences = torch.tensor(prefix, dtype=torch.int64, device=scores.device)[None]  # [n, T + depth]
    nodes = torch.zeros(1, dtype=torch.int64, device=scores.device)
    for depth in range(tree.max_depth + 1):
        scores[nodes] = _run(processors, sequences, scores[nodes])
        children = (depths == depth + 1).nonzero()[:, 0]
        allowed = scores[parents[children], tokens[children]] > float("-inf")
        children = children[allowed & torch.isin(parents[children], nodes)]
        if len(children) == 0:
            return
        above = torch.searchsorted(nodes, parents[children])
        sequences = torch.cat([sequences[above], tokens[children, None]], 1)
        nodes = children


def _run(processors: Sequence[LogitsProcessor], sequences: Tensor, scores: Tensor) -> Tensor:
    """Apply a request's processors to the nodes of one depth.

    Args:
        sequences: [n, T].
        scores: [n, V].
    """
    for processor in processors:
        name = getattr(processor, "__name__", type(processor).__name__)
        try:
            processed = processor(sequences, scores)  # type: ignore[arg-type]
        except Exception as error:
            raise RequestError(
                f"The logits processor {name} raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(processed, Tensor) or processed.shape != scores.shape:
            given = tuple(processed.shape) if isinstance(processed, Tensor) else type(processed).__name__
            raise RequestError(
                f"The logits processor {name} returned {given}; it must return scores of the shape "
                f"{tuple(scores.shape)} that it was given."
            )
        best = processed.amax(-1)
        if not bool(best.isfinite().all()):
            worst = float(best[~best.isfinite()][0])
            raise RequestError(
                f"The logits processor {name} left a row whose best score is {worst}; at least one token "
                "must have a finite score, and none may have +inf or NaN."
            )
        scores = processed.to(scores.dtype)
    return scores
