"""Finds out whether a model of an untried class does what this backend asks of it."""

import torch
from torch import Tensor

from dflash_backends.transformers.anatomy import Anatomy
from dflash_backends.transformers.state import TransformersState
from dflash_core.errors import UnsupportedError
from dflash_core.tree import TokenTree, chain

TRIED = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss"),
    *("qwen3_next", "qwen3_5_text"),
)
"""Model types that the tests compare with their plain forward, so that loading need not."""

PROMPT = 3
TOLERANCE = {torch.float32: 1e-3}
LOW_PRECISION = 0.05
"""Shares of the largest logit by which two ways of computing the same may differ."""

FAULTS = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What a class raises that was not written for a mask or a cache from outside."""


@torch.no_grad()
def probe(parts: Anatomy) -> None:
    """Compare a few tokens verified behind a prompt with the model's own forward over the same tokens.

    A class that makes its own positions or masks would load, run, and silently decode something else.

    Raises:
        UnsupportedError: they differ, or the class cannot be run so at all.
    """
    if parts.config.model_type in TRIED:
        return
    vocabulary = len(parts.embedding)
    prompt = [index % vocabulary for index in range(2, 2 + PROMPT)]
    tree = _chain(parts) if parts.mixers else _fork(parts)
    try:
        expected = torch.stack([_own(parts, prompt, tree, node) for node in range(tree.width)])
        state = TransformersState(parts, (len(parts.layers) - 1,))
        state.prefill(prompt)
        verified = state.verify(tree).logits[0]
    except FAULTS as error:
        raise UnsupportedError(f"{_cannot(parts)}: {type(error).__name__}: {error}") from error
    allowed = TOLERANCE.get(parts.dtype, LOW_PRECISION) * float(expected.abs().max())
    if not float((verified - expected).abs().max()) <= allowed:
        raise UnsupportedError(f"{_cannot(parts)}: its logits differ from those of its own forward.")


def _cannot(parts: Anatomy) -> str:
    kind = type(parts.model).__name__
    return f"{parts.name}: {kind} cannot be run behind a cache and a mask of our own"


def _own(parts: Anatomy, prompt: list[int], tree: TokenTree, node: int) -> Tensor:
    """The logits [V] of the model's own forward over the prompt and the node's ancestors."""
    branch = tree.tokens[0, tree.visible[0, node]].tolist()
    tokens = torch.tensor([[*prompt, *branch]], device=parts.device)
    logits: Tensor = parts.model(input_ids=tokens, use_cache=False).logits[0, -1]
    return logits


def _chain(parts: Anatomy) -> TokenTree:
    tokens = torch.tensor([[5, 6, 7]], device=parts.device) % len(parts.embedding)
    return chain(tokens, torch.tensor([3], device=parts.device))


def _fork(parts: Anatomy) -> TokenTree:
    """Two children of the root, which must not see each other though the second stands behind the first."""
    base = _chain(parts)
    above = torch.tensor([[-1, 0, 0]], device=parts.device)
    visible = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], device=parts.device).bool()
    return TokenTree(
        tokens=base.tokens,
        parents=above,
        depths=(above >= 0).long(),
        visible=visible,
        num_nodes=base.num_nodes,
        max_depth=1,
        is_chain=False,
    )
