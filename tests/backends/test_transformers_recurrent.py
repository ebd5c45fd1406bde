"""Hybrid models: a recurrent state follows the accepted tokens, which cropping does not achieve."""

import pytest
import torch
from tiny_targets import RECURRENT, plain_greedy, prompts, random_chain, tiny_target, tree_of

from dflash_core.errors import UnsupportedError
from dflash_core.rollback.base import RollbackPlan
from dflash_core.tree import chain

POLICIES = ("replay", "checkpoint")
COUNT = 18
PATTERN = ((0, 3, 1), (2, 0, 4), (4, 4, 4), (1, 2, 0), (0, 0, 0))
"""Right guesses a row in each cycle, repeated."""


def _decode(target, texts, expected, verify_and_commit, widths=(5, 4, 5)):
    """Decode with drafts that are right for as long as `PATTERN` says; ragged chains of `widths` nodes.

    Returns:
        per row the tokens it committed, and in how many cycles.
    """
    state = target.start(())
    done = [[int(state.prefill(text).logits[0, -1].argmax())] for text in texts]
    cycles = 0
    while min(map(len, done)) < COUNT:
        tokens = torch.zeros(len(texts), max(widths), dtype=torch.int64)
        for row, width in enumerate(widths):
            right = expected[row][len(done[row]) :][: PATTERN[cycles % len(PATTERN)][row]]
            drafts = (right + [(done[row][-1] + 1) % 90 + 1] * width)[: width - 1]
            tokens[row, :width] = torch.tensor([done[row][-1], *drafts])
        tree = chain(tokens, torch.tensor(widths))

        def accept(logits, tokens=tokens):
            choice = logits.argmax(-1)
            keep = []
            for row, width in enumerate(widths):
                drafts = tokens[row, 1:width]
                accepted = int((drafts == choice[row, : width - 1]).long().cumprod(0).sum())
                keep.append(accepted + 1)
                done[row].extend([*drafts[:accepted].tolist(), int(choice[row, accepted])])
            return keep

        verify_and_commit(state, tree, accept)
        cycles += 1
    return [tokens[:COUNT] for tokens in done], cycles


def _with(policy):
    def verify_and_commit(state, tree, accept):
        keep = accept(state.verify(tree, policy).logits)
        state.commit(RollbackPlan(keep, recurrent=policy))

    return verify_and_commit


def _by_cropping(state, tree, accept):
    """As a plain KV cache does it: K/V of rejected nodes are forgotten, the recurrent state stays."""
    keep = accept(state.verify(tree).logits)
    for layer in state._cache.recurrent.values():
        layer.commit(layer.working)
    state._cache.lengths = [length + kept for length, kept in zip(state._cache.lengths, keep, strict=True)]


@pytest.fixture(scope="module", params=RECURRENT)
def problem(request):
    target, texts = tiny_target(request.param), prompts(9, 2, 6)
    return target, texts, [plain_greedy(target, text, COUNT + 5) for text in texts]


@pytest.mark.parametrize("policy", POLICIES)
def test_both_policies_give_exactly_the_plain_greedy_tokens(problem, policy):
    target, texts, expected = problem
    decoded, cycles = _decode(target, texts, expected, _with(policy))
    assert decoded == [tokens[:COUNT] for tokens in expected]
    assert cycles < COUNT - 1  # some drafts were accepted, or nothing was rolled back


def test_plain_cropping_gives_wrong_tokens(problem):
    target, texts, expected = problem
    decoded, _ = _decode(target, texts, expected, _by_cropping)
    assert all(tokens != right[:COUNT] for tokens, right in zip(decoded, expected, strict=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_that_leave_and_join_keep_their_states(problem, policy):
    target, texts, expected = problem
    state = target.start(())
    for text in texts:
        state.prefill(text)
    first = [tokens[0] for tokens in expected]
    wrong = [(token + 1) % 90 + 1 for token in first]
    tree = chain(
        torch.tensor([[a, b, b] for a, b in zip(first, wrong, strict=True)]), torch.tensor([3, 1, 2])
    )
    state.verify(tree, policy)
    state.commit(RollbackPlan([1, 1, 1], recurrent=policy))
    state.keep([2, 0])
    state.prefill(texts[1])
    rows = [expected[2][1:3], expected[0][1:3], expected[1][:2]]
    logits = state.verify(chain(torch.tensor([row[:1] for row in rows]), torch.ones(3).long())).logits
    assert logits[:, 0].argmax(-1).tolist() == [row[1] for row in rows]


def test_plain_decoding_records_nothing_and_needs_nothing(problem):
    target, texts, expected = problem
    state, tokens = target.start(()), []
    logits = state.prefill(texts[0]).logits
    for _ in range(6):
        tokens.append(int(logits[0, -1].argmax()))
        logits = state.verify(chain(torch.tensor([tokens[-1:]]), torch.tensor([1]))).logits
        state.commit(RollbackPlan([1]))
    assert tokens == expected[0][:6]


def test_what_cannot_be_right_is_refused(problem):
    target, texts, _ = problem
    assert target.info.recurrent
    assert not target.info.trees
    state = target.start(())
    state.prefill(texts[0])
    with pytest.raises(UnsupportedError, match="cannot verify trees: its recurrent layers"):
        state.verify(tree_of([[-1, 0, 0]], [3]))
    with pytest.raises(UnsupportedError, match="nothing to commit"):
        state.commit(RollbackPlan([1]))
    state.verify(random_chain((3,)))
    with pytest.raises(UnsupportedError, match="cannot be cropped"):
        state.commit(RollbackPlan([2]))
    state.verify(random_chain((3,)), "replay")
    with pytest.raises(UnsupportedError, match="by 'checkpoint', but the forward recorded for 'replay'"):
        state.commit(RollbackPlan([2], recurrent="checkpoint"))


def test_recording_leaves_the_model_as_it_was(problem):
    target, texts, _ = problem
    state = target.start(())
    state.prefill(texts[0])
    for policy in POLICIES:
        state.verify(random_chain((3,)), policy)
    mixers = [layer.linear_attn for layer in target.model.model.layers if hasattr(layer, "linear_attn")]
    assert mixers
    assert not any(mixer._forward_pre_hooks or "forward" in vars(mixer) for mixer in mixers)
