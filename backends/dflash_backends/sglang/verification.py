"""What requests ask of the target's logits, at every node: penalties, biases, grammars, log-probabilities."""

from typing import Any

import torch
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask
from torch import Tensor

from dflash_backends.sglang.layout import links
from dflash_backends.sglang.penalties import Penalty, custom, penalties_of
from dflash_core.processors import apply_processors
from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict


def adjust(batch: Any, tree: TokenTree, logits: Tensor) -> Tensor:
    """Logits [B, N, V] as plain decoding would sample from them, in SGLang's order of things."""
    info = batch.sampling_info
    if info is None:
        return logits
    processors = [[*own, *penalties_of(req)] for own, req in zip(_custom(info), batch.reqs, strict=True)]
    if any(processors):
        # what the request has produced so far, which is all that SGLang's penalties look at
        prefixes = [list(request.output_ids) for request in batch.reqs]
        logits = apply_processors(tree, logits, prefixes, processors)
    if batch.has_grammar:
        logits = _constrained(batch, tree, logits)
    if info.logit_bias is not None:
        logits = logits + info.logit_bias[:, None, :]
    return logits


def _custom(info: Any) -> list[list[Penalty]]:
    """Per request the custom logit processors that it brought."""
    found: list[list[Penalty]] = [[] for _ in range(len(info))]
    if info.has_custom_logit_processor:
        for entry in info.custom_logit_processor.values():
            for row in entry.rows:
                found[row].append(custom(entry.processor, info.custom_params[row]))
    return found


def _constrained(batch: Any, tree: TokenTree, logits: Tensor) -> Tensor:
    """-inf for what a request's grammar does not allow after each node."""
    parents, counts = tree.parents.cpu(), tree.num_nodes.cpu()
    child, sibling = links(parents, counts)
    mask = build_grammar_vocab_mask(
        reqs=batch.reqs,
        tree=GrammarTree.from_host(child, sibling, tree.tokens.cpu()),
        sampling_info=batch.sampling_info,
        device=logits.device,
        barrier=None,
    )
    if mask is None:
        return logits
    flat = logits.reshape(-1, logits.shape[-1]).contiguous()
    mask.apply(flat)
    return flat.view(logits.shape)


def record_logprobs(batch: Any, output: Any, logits: Tensor, verdict: Verdict) -> None:
    """Log-probabilities of the committed tokens, where SGLang looks for them.

    Args:
        logits: [B, N, V], adjusted.
    """
    count, width = logits.shape[:2]
    first = torch.arange(count, device=logits.device)[:, None] * width
    real = verdict.nodes >= 0
    rows = (first + verdict.nodes.clamp(min=0)).masked_fill(~real, 0)
    # SGLang looks a token up by the node that predicts it
    predicted = torch.zeros(count * width, dtype=torch.int64, device=logits.device)
    predicted[rows[real]] = verdict.tokens[real]
    output.next_token_logits = logits.reshape(-1, logits.shape[-1])
    compute_spec_logprobs(batch, output, predicted, accept_index=rows)
