"""A real server that verifies token trees of 16 nodes, with the shipped draft (DFlash2)."""

import pytest
import torch
from conditional_check import conditional_p
from distribution_check import ALPHA
from sglang_asks import CODE, FEATURES, GREEDY_TOKENS, TO_THE_END, chat, read, same
from sglang_server import SHIPPED, embedded_cycles, speculative

pytest.importorskip("sglang", reason="SGLang is in an environment of its own; see `make test-sglang`")

FLAGS = speculative("--max-running-requests", "8", "--dflash-tree-budget", "16", draft=SHIPPED)


def test_greedy_answers_are_those_without_speculation(server, plain, prompts):
    answers = server.generate_all(prompts, max_new_tokens=GREEDY_TOKENS)
    assert [answer["output_ids"] for answer in answers] == plain["greedy"]


def test_a_request_needs_as_many_cycles_as_in_the_embedded_engine(server, prompts):
    few = prompts[:6]
    embedded = embedded_cycles(few, GREEDY_TOKENS, 16, SHIPPED)
    answers = [server.generate(prompt, max_new_tokens=GREEDY_TOKENS) for prompt in few]
    assert [answer["output_ids"] for answer in answers] == embedded["tokens"]
    assert [answer["meta_info"]["spec_verify_ct"] for answer in answers] == embedded["cycles"]


def test_alone_and_after_a_prefix_hit_they_are_the_same(server, plain, prompts):
    server.post("/flush_cache")
    for prompt, expected in list(zip(prompts, plain["greedy"], strict=True))[3:6]:
        first, again = (server.generate(prompt, max_new_tokens=GREEDY_TOKENS) for _ in range(2))
        assert first["output_ids"] == again["output_ids"] == expected


@pytest.mark.parametrize("name", FEATURES)
def test_what_a_request_may_ask_for_gives_what_it_gives_without_speculation(server, plain, name):
    prompt, params = FEATURES[name]
    answer = read(server.generate(prompt, **params))
    assert same(plain[name], answer), (plain[name], answer)


def test_an_answer_may_reach_the_end_of_the_context(server, plain):
    """SGLang's table of slots must have room for what is reserved past the last token."""
    answer = server.generate(TO_THE_END, max_new_tokens=GREEDY_TOKENS, ignore_eos=True)
    assert answer["output_ids"] == plain["to the end"]
    assert len(TO_THE_END) + len(answer["output_ids"]) == 2046  # SGLang keeps two places free


def test_a_seed_gives_one_text(server):
    one, other = (
        server.generate(CODE, temperature=1.0, sampling_seed=5, max_new_tokens=24)["output_ids"]
        for _ in range(2)
    )
    assert one == other


def test_samples_follow_the_targets_own_distribution(server):
    """The first token is drawn after the prompt; the second and third are decided by a tree."""
    question, top = chat("Name a fruit."), 6
    params = {"temperature": 1.0, "top_k": top, "max_new_tokens": 3, "ignore_eos": True}
    answers = server.generate_all([question] * 160, **params)
    ids = server.generate(question, max_new_tokens=1, return_logprob=True, logprob_start_len=0)
    ids = [entry[1] for entry in ids["meta_info"]["input_token_logprobs"]]
    known = {}

    def after(context):
        if context not in known:
            answer = server.generate(
                [*ids, *context], max_new_tokens=1, return_logprob=True, top_logprobs_num=top
            )
            probs = torch.zeros(49152, dtype=torch.float64)
            for value, token, _ in answer["meta_info"]["output_top_logprobs"][0]:
                probs[token] = 2.718281828459045**value
            known[context] = probs / probs.sum()
        return known[context]

    tokens = torch.tensor([answer["output_ids"] for answer in answers])
    for depth in (1, 2, 3):
        assert conditional_p(tokens[:, :depth], after) > ALPHA
