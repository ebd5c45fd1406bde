"""The block drafter as the decoder uses it: ragged batches, lazy context, windows, options."""

import pytest
import torch
from drafter_spec import markov_spec, random_checkpoint, second_spec, small_spec, spark_spec
from drafter_target import StubTarget, plan

from dflash_core.drafter.block import BlockDrafter
from dflash_core.drafter.block_context import QUEUE_LIMIT
from dflash_core.errors import SettingsError
from dflash_core.sampling import SamplingParams, sampling_batch

SPECS = {
    "first": small_spec(),
    "second": second_spec(),
    "own": small_spec(owns_embedding=True, owns_head=True, draft_vocab_size=30, target_hidden_size=9),
    "markov": markov_spec(),
    "spark": spark_spec(),
    "scaled": second_spec(input_embedding_scale=2.0, output_multiplier=3.0, final_logit_softcapping=1.5),
}


class Session:
    """Requests decoded together with made-up taps, the same for a request whoever is beside it."""

    def __init__(self, spec, requests, **options):
        self.spec = spec
        self.target = StubTarget(spec)
        self.drafter = BlockDrafter(random_checkpoint(spec), self.target, **options)
        self.context = self.drafter.start()
        self.requests, self.cycles = list(requests), 0
        self.projected = 0
        inner = self.drafter.network.context_features

        def counted(taps):
            self.projected += len(taps)
            return inner(taps)

        self.drafter.network.context_features = counted
        for request in requests:
            prompt = 3 + 4 * request
            self.drafter.join(self.context, [0] * prompt, self.taps(request, 0, prompt))

    def taps(self, request, cycle, count):
        generator = torch.Generator().manual_seed(1000 * request + cycle)
        return torch.randn(count, self.spec.tap_width, generator=generator)

    def commit(self, nodes):
        """`nodes[i]` is given for each request."""
        self.cycles += 1
        width = max(max(n) for n in nodes) + 1
        taps = torch.full((len(nodes), width, self.spec.tap_width), float("nan"))
        for row, (request, accepted) in enumerate(zip(self.requests, nodes, strict=True)):
            taps[row, accepted] = self.taps(request, self.cycles, len(accepted))
        self.drafter.commit(self.context, [[0] * len(n) for n in nodes], taps, nodes)
        taps.fill_(float("nan"))  # an engine may reuse its buffers

    def keep(self, rows):
        self.context.keep(rows)
        self.requests = [self.requests[row] for row in rows]

    def propose(self, blocks, lengths=None, trees=None, params=None):
        anchors = torch.tensor([7 * request % self.spec.vocab_size for request in self.requests])
        params = params or [SamplingParams(seed=request) for request in self.requests]
        sampling = sampling_batch(params, self.context.lengths)
        return self.drafter.propose(anchors, self.context, plan(blocks, lengths, trees), sampling)


def row_of(proposal, row):
    count = int(proposal.tree.num_nodes[row])
    return proposal.tree.tokens[row, :count].tolist(), proposal.log_probs[row, :count]


@pytest.mark.parametrize("name", SPECS)
def test_a_request_is_drafted_the_same_whoever_is_beside_it(name):
    together = Session(SPECS[name], [0, 1, 2])
    alone = [Session(SPECS[name], [request]) for request in range(3)]
    blocks, nodes = [5, 2, 4], [[0, 1], [0], [0, 1, 2, 3]]
    for _ in range(3):
        proposal = together.propose(blocks)
        for request, session in enumerate(alone):
            tokens, log_probs = row_of(session.propose([blocks[request]]), 0)
            assert row_of(proposal, request)[0] == tokens
            torch.testing.assert_close(row_of(proposal, request)[1], log_probs, atol=1e-5, rtol=0)
            session.commit([nodes[request]])
        together.commit(nodes)
        blocks, nodes = [*blocks[1:], blocks[0]], [*nodes[1:], nodes[0]]


@pytest.mark.parametrize("name", SPECS)
def test_a_shorter_verify_length_takes_the_first_slots_of_the_same_block(name):
    session = Session(SPECS[name], [1, 2])
    whole, some = session.propose([5, 4]), session.propose([5, 4], lengths=[3, 2])
    assert some.tree.num_nodes.tolist() == [3, 2]
    assert some.tree.width == 3
    for row, length in enumerate([3, 2]):
        assert row_of(some, row)[0] == row_of(whole, row)[0][:length]


def test_rows_that_decode_plainly_get_their_anchor_alone():
    session, alone = Session(SPECS["first"], [0, 1, 2]), Session(SPECS["first"], [1])
    proposal = session.propose([1, 4, 5], lengths=[1, 4, 1])
    assert proposal.tree.num_nodes.tolist() == [1, 4, 1]
    assert row_of(proposal, 0)[0] == [0]
    assert row_of(proposal, 1)[0] == row_of(alone.propose([4]), 0)[0]
    nothing = session.propose([1, 1, 1])
    assert nothing.tree.width == 1


def test_log_probs_are_the_heads_own():
    spec = second_spec(conv=None, selector=None, output_multiplier=3.0, final_logit_softcapping=1.5)
    session = Session(spec, [1])
    captured = []
    session.drafter.head.register_forward_hook(lambda module, args, out: captured.append((args[0], out)))
    proposal = session.propose([5])
    (hidden, logits) = captured[0]
    assert hidden.shape[1] == 4, "only the slots that are verified go through the head"
    raw = session.target.head(hidden)
    torch.testing.assert_close(logits, 1.5 * (raw * 3 / 1.5).tanh())
    best = logits.log_softmax(-1).max(-1)
    assert proposal.tree.tokens[0, 1:].tolist() == best.indices[0].tolist()
    torch.testing.assert_close(proposal.log_probs[0, 1:], best.values[0])
    assert proposal.log_probs[0, 0] == 0


def test_plain_cycles_project_nothing_and_every_position_is_projected_once():
    lazy, eager = (Session(SPECS["first"], [0, 1]) for _ in range(2))
    for nodes in ([[0], [0]], [[0, 2], [0]], [[0], [0, 1, 3]]):
        eager.propose([5, 5])
        for session in (lazy, eager):
            session.commit(nodes)
    assert lazy.projected == 0
    assert lazy.context.lengths == eager.context.lengths == [3 + 4, 7 + 5]
    ours, theirs = lazy.propose([5, 5]), eager.propose([5, 5])
    assert lazy.projected == eager.projected == sum(lazy.context.lengths)
    assert torch.equal(ours.tree.tokens, theirs.tree.tokens)
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=1e-5, rtol=0)
    lazy.propose([5, 5])
    assert lazy.projected == sum(lazy.context.lengths)


def test_a_long_plain_stretch_does_not_pile_up_taps():
    session = Session(SPECS["first"], [0])
    for _ in range(QUEUE_LIMIT + 10):
        session.commit([[0]])
        assert session.context.queued <= QUEUE_LIMIT
    assert session.projected > 0


@pytest.mark.parametrize("window", [1, 4])
def test_a_draft_window_forgets_what_is_older_and_projects_no_more_than_it_needs(window):
    session = Session(SPECS["first"], [2], draft_window=window)
    for _ in range(5):
        session.commit([[0, 1]])
    proposal = session.propose([5])
    assert session.projected == window
    assert session.context.lengths == [21]
    assert all(zone.allocated == window for zone in session.context.pool.zones)
    bounded = Session(SPECS["first"], [2])
    for _ in range(5):
        bounded.commit([[0, 1]])
    assert not torch.allclose(bounded.propose([5]).log_probs, proposal.log_probs, atol=1e-4)
    unbounded = Session(SPECS["first"], [2], draft_window=1000)
    for _ in range(5):
        unbounded.commit([[0, 1]])
    torch.testing.assert_close(unbounded.propose([5]).log_probs, bounded.propose([5]).log_probs)


def test_requests_that_leave_take_nothing_with_them():
    session, alone = Session(SPECS["second"], [0, 1, 2]), Session(SPECS["second"], [2])
    session.commit([[0], [0, 1], [0, 1]])
    alone.commit([[0, 1]])
    session.keep([2, 0])
    assert row_of(session.propose([5, 5]), 0)[0] == row_of(alone.propose([5]), 0)[0]
    session.commit([[0, 1, 2], [0]])
    alone.commit([[0, 1, 2]])
    session.keep([0])
    assert row_of(session.propose([5]), 0)[0] == row_of(alone.propose([5]), 0)[0]
    session.keep([])
    assert all(zone.free == zone.num_slots for zone in session.context.pool.zones)


def test_a_pool_of_another_dtype_drafts_nearly_the_same():
    whole, half = Session(SPECS["first"], [2]), Session(SPECS["first"], [2], context_dtype="bfloat16")
    assert half.context.pool.zones[0].k.dtype == torch.bfloat16
    torch.testing.assert_close(half.propose([5]).log_probs, whole.propose([5]).log_probs, atol=0.05, rtol=0)


def test_a_draft_with_its_own_head_proposes_tokens_of_its_own_vocabulary():
    session = Session(SPECS["own"], [0, 1, 2])
    allowed = set(session.drafter.head.ids.tolist())
    assert len(allowed) == 30
    drafted = session.propose([5, 5, 5]).tree.tokens[:, 1:].flatten().tolist()
    assert set(drafted) <= allowed
    assert any(token >= 30 for token in drafted), "rows of the head are not token ids"


@pytest.mark.parametrize("name", ["first", "second", "spark", "own"])
def test_a_draft_vocabulary_keeps_to_its_tokens_and_their_logits(name):
    whole, few = Session(SPECS[name], [1]), Session(SPECS[name], [1], draft_vocab=40)
    hidden = torch.randn(2, 3, SPECS[name].hidden_size)
    every = whole.drafter.head
    logits = every(hidden)
    ids = torch.arange(logits.shape[-1]) if every.ids is None else every.ids
    torch.testing.assert_close(few.drafter.head(hidden), logits[..., ids < 40])
    assert few.drafter.head.ids.tolist() == ids[ids < 40].tolist()
    assert (few.propose([5]).tree.tokens[0, 1:] < 40).all()


def test_a_draft_vocabulary_can_be_a_file(tmp_path):
    listed = tmp_path / "ids.json"
    listed.write_text("[50, 3, 17]")
    assert Session(SPECS["first"], [1], draft_vocab=listed).drafter.head.ids.tolist() == [3, 17, 50]
    for wrong in ('{"ids": [1]}', '["3"]', "[true]", "[1e3]", f"[{10**30}]"):
        listed.write_text(wrong)
        with pytest.raises(SettingsError, match="must hold a JSON list of token ids"):
            Session(SPECS["first"], [1], draft_vocab=str(listed))


def test_a_draft_vocabulary_can_be_listed():
    session = Session(SPECS["first"], [1], draft_vocab=torch.tensor([50, 3, 17, 3]))
    assert session.drafter.head.ids.tolist() == [3, 17, 50]
    assert set(session.propose([5]).tree.tokens[0, 1:].tolist()) <= {3, 17, 50}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_vocab": 0}, "from 1 to 61"),
        ({"draft_vocab": 62}, "from 1 to 61"),
        ({"draft_vocab": [4, 61]}, "0 to 60"),
        ({"draft_vocab": []}, "at least one"),
        ({"draft_vocab": "no/such.json"}, "no/such.json, which cannot be read"),
        ({"proposal": "beam"}, "one of auto, argmax, sample"),
        ({"dtype": "int8"}, "one of float32, bfloat16, float16"),
        ({"context_dtype": torch.int32}, "context_dtype is torch.int32"),
        ({"draft_window": 0}, "at least 1"),
    ],
)
def test_senseless_options_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        Session(SPECS["first"], [0], **options)


@pytest.mark.parametrize("taps", [None, torch.zeros(3, 71), torch.zeros(2, 72)])
def test_taps_of_another_shape_are_refused(taps):
    session = Session(SPECS["first"], [])
    with pytest.raises(ValueError, match=r"needs \[3, 72\] of blocks \[1, 3, 5\]"):
        session.drafter.join(session.context, [1, 2, 3], taps)
