"""A real server of three tensor-parallel ranks: the model has three heads of keys, so two cannot share it."""

import pytest
from sglang_asks import CODE, GREEDY_TOKENS
from sglang_server import speculative

pytest.importorskip("sglang", reason="SGLang is in an environment of its own; see `make test-sglang`")

FLAGS = speculative("--tp-size", "3", "--max-running-requests", "4", "--dflash-tree-budget", "8")
ENVIRONMENT = {"SGLANG_CPU_OMP_THREADS_BIND": "0|0|0", "OMP_NUM_THREADS": "1", "DFLASH_FAST": "auto"}
"""SGLang wants to be told where several ranks of one processor run."""

PROMPTS = 6


def test_greedy_answers_are_those_of_one_rank_without_speculation(server, plain, prompts):
    answers = server.generate_all(prompts[:PROMPTS], workers=3, max_new_tokens=GREEDY_TOKENS)
    assert [answer["output_ids"] for answer in answers] == plain["greedy"][:PROMPTS]
    assert all(answer["meta_info"]["spec_accept_length"] > 1 for answer in answers)


def test_all_ranks_draw_the_same_sample(server):
    """Ranks that drew different tokens would run apart, and hang or answer nonsense."""
    params = {"temperature": 1.0, "max_new_tokens": 24, "ignore_eos": True}
    one, other = (server.generate(CODE, sampling_seed=5, **params)["output_ids"] for _ in range(2))
    assert one == other
    free = server.generate_all([CODE] * 3, workers=3, **params)
    assert all(len(answer["output_ids"]) == 24 for answer in free)
