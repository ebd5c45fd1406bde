"""DSpark: every slot predicts the token after its own, and after the token drafted before it."""

import pytest
import torch
from drafter_spec import markov_spec, random_checkpoint, spark_spec
from drafter_target import StubTarget, plan

from dflash_core.checkpoint.dspark import FROM, INTO
from dflash_core.drafter import markov
from dflash_core.drafter.block import BlockDrafter
from dflash_core.errors import UnsupportedError
from dflash_core.sampling import SamplingParams, sampling_batch
from dflash_core.spec import ConfidenceSpec, SelectorSpec

CONTEXT, ANCHOR = 9, 11
GREEDY = SamplingParams()


def drafted(spec, blocks, lengths=None, params=GREEDY, **options):
    """A drafter, its proposal for requests that are alike, and what went into and came out of its network."""
    drafter = BlockDrafter(random_checkpoint(spec), StubTarget(spec), **options)
    context = drafter.start()
    taps = torch.randn(CONTEXT, spec.tap_width, generator=torch.Generator().manual_seed(3))
    for _ in blocks:
        drafter.join(context, [0] * CONTEXT, taps)
    seen = {}
    drafter.network.register_forward_hook(lambda module, args, out: seen.update(args=args, hidden=out))
    sampling = sampling_batch([params] * len(blocks), context.lengths)
    anchors = torch.full((len(blocks),), ANCHOR)
    return drafter, drafter.propose(anchors, context, plan(blocks, lengths), sampling), seen


def by_hand(drafter, logits, anchor, candidates):
    """Greedy tokens of slots with these logits [S, V]: one loop, the whole of both tables."""
    tensors = random_checkpoint(drafter.spec).tensors
    tokens = []
    for row in logits:
        biased = row + tensors[INTO] @ tensors[FROM][tokens[-1] if tokens else anchor]
        allowed = torch.full_like(row, float("-inf")).index_fill(0, row.topk(candidates).indices, 0.0)
        tokens.append(int((biased + allowed).argmax()))
    return tokens


@pytest.mark.parametrize("make", [markov_spec, spark_spec])
@pytest.mark.parametrize("candidates", [61, 4])
def test_each_token_is_the_best_after_the_one_before_it(make, candidates, monkeypatch):
    monkeypatch.setattr(markov, "CANDIDATES", candidates)
    drafter, proposal, seen = drafted(make(), [5])
    hidden = seen["hidden"][0, 0 if drafter.spec.anchor_predicts else 1 :]
    assert proposal.tree.tokens[0].tolist() == [
        ANCHOR,
        *by_hand(drafter, drafter.head(hidden), ANCHOR, candidates),
    ]
    alone = drafter.head(hidden).argmax(-1).tolist()
    assert proposal.tree.tokens[0, 1:].tolist() != alone, "the head changes nothing, so this shows nothing"


def test_log_probs_are_those_of_what_was_drawn(monkeypatch):
    monkeypatch.setattr(markov, "CANDIDATES", 61)
    drafter, proposal, seen = drafted(spark_spec(), [5], params=SamplingParams(temperature=1.0, seed=3))
    tensors = random_checkpoint(drafter.spec).tensors
    before = proposal.tree.tokens[0, :-1]
    logits = drafter.head(seen["hidden"][0]) + tensors[FROM][before] @ tensors[INTO].T
    expected = logits.log_softmax(-1).gather(1, proposal.tree.tokens[0, 1:, None])[:, 0]
    torch.testing.assert_close(proposal.log_probs[0, 1:], expected)
    q = proposal.distribution
    dense = torch.zeros(4, drafter.spec.vocab_size).scatter_add_(1, q.ids[0, :4], q.probs[0, :4])
    torch.testing.assert_close(dense, logits.softmax(-1))


@pytest.mark.parametrize(
    ("blocks", "lengths"), [([5], None), ([5, 3, 2], None), ([5, 5], [2, 3]), ([2], None)]
)
def test_a_block_drafts_a_token_for_every_slot_that_its_network_sees(blocks, lengths):
    """The anchor and the masks after it, one slot less than the block, at the positions of v1."""
    drafter, proposal, seen = drafted(spark_spec(), blocks, lengths)
    embeddings, positions, _, block_lengths = seen["args"]
    width = max(blocks) - 1
    assert positions.tolist() == [list(range(CONTEXT, CONTEXT + width))] * len(blocks)
    masks = torch.tensor([ANCHOR] + [drafter.spec.mask_token_id] * (width - 1))
    assert torch.equal(embeddings[0], StubTarget(drafter.spec).embed(masks))
    real = [width] * len(blocks) if block_lengths is None else block_lengths.tolist()
    assert real == [block - 1 for block in blocks]
    assert proposal.tree.num_nodes.tolist() == (lengths or blocks)
    assert seen["hidden"].shape[1] == max(lengths or blocks) - 1, "no slot beyond what is verified"


def test_the_same_network_drafts_one_token_more_where_its_anchor_predicts():
    """Slot by slot the hidden states are v1's; only what they are taken for differs."""
    _, _, plain = drafted(markov_spec(), [4])
    _, _, early = drafted(spark_spec(), [5])
    torch.testing.assert_close(early["hidden"], plain["hidden"])


def test_a_draft_vocabulary_keeps_the_rows_of_its_tokens():
    drafter, proposal, seen = drafted(spark_spec(), [5], draft_vocab=[50, 3, 17])
    logits = torch.full((4, 61), float("-inf"))
    logits[:, [3, 17, 50]] = drafter.head(seen["hidden"][0])
    assert proposal.tree.tokens[0, 1:].tolist() == by_hand(drafter, logits, ANCHOR, 3)


@pytest.mark.parametrize("features", [(), ("before",), ("log_prob", "before")], ids=str)
@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParams(temperature=1.0, seed=3)], ids=["greedy", "drawn"]
)
def test_the_linear_confidence_head_knows_the_token_before(features, sampling):
    spec = spark_spec(confidence=ConfidenceSpec(None, features, (1.0, 2.0, 1.0, 0.5)))
    _, proposal, seen = drafted(spec, [5], params=sampling)
    tensors = random_checkpoint(spec).tensors
    known = {
        "before": tensors[FROM][proposal.tree.tokens[0, :-1]],
        "log_prob": proposal.log_probs[0, 1:, None],
    }
    x = torch.cat([seen["hidden"][0], *(known[feature] for feature in features)], -1)
    logits = x @ tensors["confidence_head.proj.weight"][0] + tensors["confidence_head.proj.bias"]
    expected = (logits / torch.tensor([1.0, 2.0, 1.0, 0.5])).sigmoid()
    torch.testing.assert_close(proposal.confidence[0], torch.cat([torch.ones(1), expected]))


def test_two_ways_to_choose_are_one_too_many():
    with pytest.raises(UnsupportedError, match="keep one of them"):
        drafted(markov_spec(selector=SelectorSpec(5, 6)), [5])
