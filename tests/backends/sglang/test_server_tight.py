"""A real server with little room: pages of 16, prompts in pieces of 64, trees of 64, and retraction.

What the draft sees is bounded, and the settings are in a file.
"""

import threading

import pytest
from sglang_asks import CODE, FACT, GREEDY_TOKENS, same
from sglang_server import embedded_cycles, speculative

pytest.importorskip("sglang", reason="SGLang is in an environment of its own; see `make test-sglang`")

SLOTS, NODES, WINDOW = 1536, 64, 48
SETTINGS = f"tree_budget = {NODES}\n"
FLAGS = (
    *speculative("--speculative-draft-window-size", str(WINDOW), "--dflash-config", "settings.toml"),
    *("--max-running-requests", "8", "--page-size", "16", "--chunked-prefill-size", "64", "--enable-metrics"),
    *("--max-total-tokens", str(SLOTS), "--schedule-conservativeness", "0.1"),
)


def test_greedy_answers_are_those_without_speculation(server, plain, prompts):
    answers = server.generate_all(prompts, max_new_tokens=GREEDY_TOKENS)
    assert [answer["output_ids"] for answer in answers] == plain["greedy"]


def test_the_draft_sees_what_it_sees_in_the_embedded_engine(server, plain, prompts):
    """Answers are right whatever the draft sees, but the number of cycles is not."""
    few = prompts[:4]
    embedded = embedded_cycles(few, GREEDY_TOKENS, NODES, draft_window=WINDOW)
    server.post("/flush_cache")
    for _ in range(2):  # in pieces, and from kept prefixes
        answers = [server.generate(prompt, max_new_tokens=GREEDY_TOKENS) for prompt in few]
        assert [answer["output_ids"] for answer in answers] == plain["greedy"][: len(few)]
        assert [answer["meta_info"]["spec_verify_ct"] for answer in answers] == embedded["cycles"]


def test_requests_that_were_put_back_are_answered_right(server, prompts):
    """Eight long answers do not fit, so that some are retracted and later run again from what they had."""
    params = {"max_new_tokens": 160, "ignore_eos": True}
    alone = [server.generate(prompt, **params)["output_ids"] for prompt in prompts[:6]]
    together = server.generate_all(prompts[:6], workers=6, **params)
    assert sum(answer["meta_info"]["num_retractions"] for answer in together) > 0
    assert [answer["output_ids"] for answer in together] == alone


def test_no_slot_is_lost(server, prompts):
    """After aborts, disconnects and retractions, every slot of the pool can be had again."""
    body = {"text": FACT, "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}, "stream": True}
    threads = []
    for _ in range(3):
        gone = server.post("/generate", body, raw=True)
        gone.readline()
        threads.append(threading.Thread(target=gone.close))
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    expected = server.generate(CODE, max_new_tokens=24)["output_ids"]
    assert "flushed" in server.post("/flush_cache")
    longest = SLOTS - 400
    assert (
        server.generate([2] * longest, max_new_tokens=8, ignore_eos=True)["meta_info"]["prompt_tokens"]
        == longest
    )
    assert server.generate(CODE, max_new_tokens=24)["output_ids"] == expected
    assert server.used_when_idle() == 0


def test_the_plain_answers_were_taken_from_the_same_model(plain, server):
    name = "stop string"
    answer = server.generate(CODE, stop=["return"], max_new_tokens=60)
    assert same({"text": plain[name]["text"]}, {"text": answer["text"]})
