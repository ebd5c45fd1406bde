"""A small target and drafts whose distributions are known exactly, decoded by many requests at once.

The target's next token depends on the last token and on the position, and so does the draft's; their logits
differ, so that drafts are accepted often and refused often.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dflash_core.proposal import DraftDistribution, Proposal
from dflash_core.sampling import SamplingBatch, SamplingParams, sampling_batch
from dflash_core.tree import TokenTree, best_first, chain, from_parents
from dflash_core.verdict import Verdict
from dflash_core.verify.base import Verifier
from dflash_kernels.candidate_probs import candidate_probs
from dflash_kernels.draw import draw
from dflash_kernels.markov_walk import markov_walk
from dflash_kernels.uniform import DRAFT, STREAMS, uniform

ANCHOR_POSITION = 4


@dataclass(frozen=True)
class Markov:
    """`table[position % len(table), token]` are the logits [V] of the token after that one."""

    table: Tensor

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[...] tokens at [...] positions -> [..., V]."""
        return self.table[positions % len(self.table), tokens]


def markov_pair(vocab: int, seed: int, agreement: float = 1.0) -> tuple[Markov, Markov]:
    """A target and a draft that knows it roughly; ties and steps of a half make filters meet equal logits."""
    generator = torch.Generator().manual_seed(seed)
    table = (torch.randn(3, vocab, vocab, generator=generator) * 3).round() / 2
    noise = torch.randn(3, vocab, vocab, generator=generator)
    return Markov(table), Markov(agreement * table + noise)


def exact_joint(target: Markov, anchor: int, length: int, params: SamplingParams) -> Tensor:
    """Distribution [V, ...] of the first `length` tokens of plain sampling, through transformers' warpers."""
    vocab = target.table.shape[-1]
    joint = torch.ones((), dtype=torch.float64)
    for step in range(length):
        tokens = torch.arange(vocab) if step else torch.tensor([anchor])
        logits = target.logits(tokens, torch.full_like(tokens, ANCHOR_POSITION + step))
        probs = warped(logits, params)
        joint = joint[..., None] * (probs if step else probs[0])
    return joint


def warped(logits: Tensor, params: SamplingParams) -> Tensor:
    """What transformers samples from, [n, V] float64."""
    ids = torch.zeros(len(logits), 1, dtype=torch.int64)
    scores = TemperatureLogitsWarper(float(params.temperature))(ids, logits)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    return scores.double().softmax(-1)


Propose = Callable[[Markov, Tensor, SamplingBatch], Proposal]


def plain(draft: Markov, anchors: Tensor, sampling: SamplingBatch) -> Proposal:
    """No drafts: what a verifier makes of these is plain decoding."""
    return Proposal(chain(anchors[:, None], torch.ones_like(anchors)))


def point_chain(slots: int) -> Propose:
    """The draft's best token at every slot, as many slots as the seed says (ragged)."""

    def propose(draft: Markov, anchors: Tensor, sampling: SamplingBatch) -> Proposal:
        tokens = [anchors]
        for slot in range(1, slots):
            tokens.append(draft.logits(tokens[-1], sampling.positions + slot - 1).argmax(-1))
        return Proposal(chain(torch.stack(tokens, 1), 1 + sampling.seeds % slots))

    return propose


def point_tree(depth: int, ranks: int, budget: int) -> Propose:
    """Best-first trees, of as many nodes as the seed says."""

    def propose(draft: Markov, anchors: Tensor, sampling: SamplingBatch) -> Proposal:
        levels = []
        token = anchors
        for level in range(depth):
            levels.append(draft.logits(token, sampling.positions + level).log_softmax(-1).topk(ranks, -1))
            token = levels[-1].indices[:, 0]
        log_probs = torch.stack([level.values for level in levels], 1)
        ids = torch.stack([level.indices for level in levels], 1)
        tree, node_log_probs = best_first(anchors, log_probs, ids, 1 + sampling.seeds % budget, budget)
        return Proposal(tree, log_probs=node_log_probs)

    return propose


def drawn_tree(parents: Sequence[int], candidates: int) -> Propose:
    """A tree of fixed shape whose children are drawn without replacement; a chain when it is one.

    Args:
        parents: of every node, in breadth-first order; -1 for the root.
        candidates: how many of the draft's best tokens are drawn from.
    """
    ranks = [parents[:node].count(parent) for node, parent in enumerate(parents)]
    depths = [0] * len(parents)
    for node, parent in enumerate(parents):
        depths[node] = depths[parent] + 1 if parent >= 0 else 0
    is_chain = list(parents) == list(range(-1, len(parents) - 1))

    def propose(draft: Markov, anchors: Tensor, sampling: SamplingBatch) -> Proposal:
        tokens: list[Tensor] = [anchors]
        ids, probs = [], []
        for node in range(len(parents)):
            if node:
                parent = parents[node]
                taken = [tokens[n] for n in range(node) if parents[n] == parent]
                left = probs[parent].clone()
                for token in taken:
                    left = left.masked_fill(ids[parent] == token[:, None], 0)
                position = sampling.positions + depths[node]
                noise = uniform(sampling.seeds, position, DRAFT + STREAMS * ranks[node])
                tokens.append(ids[parent].gather(1, draw(left, noise)[:, None])[:, 0])
            best = draft.logits(tokens[node], sampling.positions + depths[node]).topk(candidates, -1)
            ids.append(best.indices)
            probs.append(best.values.softmax(-1))
        distribution = DraftDistribution(torch.stack(ids, 1), torch.stack(probs, 1))
        stacked = torch.stack(tokens, 1)
        batch = len(anchors)
        num_nodes = torch.full((batch,), len(parents))
        if is_chain:
            return Proposal(chain(stacked, num_nodes), distribution)
        edges = torch.tensor(parents).expand(batch, -1)
        return Proposal(from_parents(stacked, edges, num_nodes, max(depths)), distribution)

    return propose


def walked_chain(slots: int, candidates: int) -> Propose:
    """A chain as a Markov head draws it: what a slot thinks by itself, and what the token before adds.

    Args:
        candidates: how many of a slot's best tokens, by what it thinks by itself, are drawn from.
    """

    def propose(draft: Markov, anchors: Tensor, sampling: SamplingBatch) -> Proposal:
        common = draft.table.mean(0)  # [V, V], the same at every position
        own = (draft.table - common).mean(1)  # [positions, V], the same after every token
        at = sampling.positions[:, None] + torch.arange(slots - 1)
        unary, ids = own[at % len(own)].topk(candidates, -1)
        noise = uniform(sampling.seeds, at + 1, DRAFT)
        tables = common, torch.eye(len(common))
        picks, scores = markov_walk(unary, ids, *tables, anchors, sampling.temperature, noise)
        tokens = torch.cat([anchors[:, None], ids.gather(2, picks[..., None])[..., 0]], 1)
        by_node = (0, 0, 0, 1)  # the last node has no draft after it
        probs = pad(candidate_probs(scores, sampling.temperature), by_node)
        distribution = DraftDistribution(pad(ids, by_node), probs)
        return Proposal(chain(tokens, torch.full_like(anchors, slots)), distribution)

    return propose


@contextmanager
def one_thread() -> Iterator[None]:
    """Of many small operations threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def decode(
    target: Markov,
    draft: Markov,
    propose: Propose,
    verifier: Verifier,
    sampling: SamplingBatch,
    anchor: int,
    length: int,
) -> tuple[Tensor, Tensor]:
    """Decode all requests of a batch together until each has `length` tokens.

    Returns:
        tokens: [B, length] int64.
        accepted: [B] int64, drafts accepted in all.
    """
    batch = len(sampling.seeds)
    running = torch.arange(batch)
    anchors = torch.full((batch,), anchor)
    produced, accepted = torch.zeros(2, batch, dtype=torch.int64)
    tokens = torch.full((batch, length + 1), -1)  # the last column takes what is beyond `length`
    while len(running):
        now = rows_of(sampling, running)
        proposal = propose(draft, anchors[running], now)
        verdict = verifier.verify(proposal, node_logits(target, proposal.tree, now), now)
        check(proposal.tree, verdict)
        places = produced[running, None] + torch.arange(verdict.tokens.shape[1])
        places = places.masked_fill(verdict.tokens < 0, length).clamp(max=length)
        tokens[running] = tokens[running].scatter(1, places, verdict.tokens)
        anchors[running] = verdict.tokens.gather(1, verdict.accepted[:, None])[:, 0]
        accepted[running] += verdict.accepted
        produced[running] += verdict.accepted + 1
        sampling = replace(sampling, positions=ANCHOR_POSITION + produced)
        running = (produced < length).nonzero()[:, 0]
    return tokens[:, :length], accepted


def rows_of(sampling: SamplingBatch, rows: Tensor) -> SamplingBatch:
    """The settings of some requests of a batch."""
    if sampling.sampled is not None:
        sampled = torch.isin(rows, sampling.sampled).nonzero()[:, 0]
        sampling = replace(sampling, sampled=sampled, greedy=len(sampled) == 0)
    fields = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    return replace(sampling, **{name: getattr(sampling, name)[rows] for name in fields})


def node_logits(target: Markov, tree: TokenTree, sampling: SamplingBatch) -> Tensor:
    """The target's logits at every node."""
    return target.logits(tree.tokens, sampling.positions[:, None] + tree.depths)


def check(tree: TokenTree, verdict: Verdict) -> None:
    """A verdict is a path of the tree, and its tokens are that path's."""
    assert verdict.nodes.shape == verdict.tokens.shape == (len(tree.tokens), tree.max_depth + 1)
    steps = torch.arange(tree.max_depth + 1)
    inside = steps <= verdict.accepted[:, None]
    assert torch.equal(verdict.nodes >= 0, inside)
    assert torch.equal(verdict.tokens >= 0, inside)
    assert bool((verdict.nodes[:, 0] == 0).all())
    above, below = verdict.nodes[:, :-1], verdict.nodes[:, 1:]
    real = below >= 0
    assert bool((tree.parents.gather(1, below.clamp(min=0))[real] == above[real]).all())
    assert bool((tree.tokens.gather(1, below.clamp(min=0))[real] == verdict.tokens[:, :-1][real]).all())
    assert bool((verdict.nodes < tree.num_nodes[:, None]).all())


def many(count: int, params: SamplingParams, first_seed: int = 0) -> SamplingBatch:
    """`count` requests of the same settings and of consecutive seeds."""
    batch = sampling_batch([params], [ANCHOR_POSITION])
    seeds = torch.arange(first_seed, first_seed + count)
    return SamplingBatch(
        temperature=batch.temperature.expand(count),
        top_k=batch.top_k.expand(count),
        top_p=batch.top_p.expand(count),
        min_p=batch.min_p.expand(count),
        seeds=seeds,
        positions=batch.positions.repeat(count),
        greedy=batch.greedy,
        filtered=batch.filtered,
        max_top_k=batch.max_top_k,
    )
