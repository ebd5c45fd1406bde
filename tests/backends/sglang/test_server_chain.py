"""A real server with chains: its answers are those of SGLang alone, and what it serves keeps working."""

import json
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conditional_check import conditional_p
from distribution_check import ALPHA
from sglang_asks import CODE, FACT, FEATURES, GREEDY_TOKENS, LIST, chat, read, same
from sglang_server import embedded_cycles, speculative

pytest.importorskip("sglang", reason="SGLang is in an environment of its own; see `make test-sglang`")

FLAGS = speculative("--max-running-requests", "8", "--enable-metrics")
NATIVE = True


def test_greedy_answers_are_those_without_speculation(server, plain, prompts):
    answers = server.generate_all(prompts, max_new_tokens=GREEDY_TOKENS)
    assert [answer["output_ids"] for answer in answers] == plain["greedy"]
    lengths = [answer["meta_info"]["spec_accept_length"] for answer in answers]
    assert sum(lengths) / len(lengths) > 1.3


def test_a_request_needs_as_many_cycles_as_in_the_embedded_engine(server, prompts):
    few = prompts[:6]
    embedded = embedded_cycles(few, GREEDY_TOKENS)
    answers = [server.generate(prompt, max_new_tokens=GREEDY_TOKENS) for prompt in few]
    assert [answer["output_ids"] for answer in answers] == embedded["tokens"]
    assert [answer["meta_info"]["spec_verify_ct"] for answer in answers] == embedded["cycles"]


def test_a_request_needs_as_many_cycles_as_with_sglangs_own_algorithm(server, native, prompts):
    answers = [server.generate(prompt, max_new_tokens=GREEDY_TOKENS) for prompt in prompts[: len(native)]]
    assert [(answer["output_ids"], answer["meta_info"]["spec_verify_ct"]) for answer in answers] == native


def test_alone_and_after_a_prefix_hit_they_are_the_same(server, plain, prompts):
    server.post("/flush_cache")
    for prompt, expected in list(zip(prompts, plain["greedy"], strict=True))[:3]:
        first, again = (server.generate(prompt, max_new_tokens=GREEDY_TOKENS) for _ in range(2))
        assert first["output_ids"] == again["output_ids"] == expected
        assert first["meta_info"]["cached_tokens"] < len(prompt) - 1
        assert again["meta_info"]["cached_tokens"] >= len(prompt) - 1
        assert first["meta_info"]["spec_accept_length"] == again["meta_info"]["spec_accept_length"]


@pytest.mark.parametrize("name", FEATURES)
def test_what_a_request_may_ask_for_gives_what_it_gives_without_speculation(server, plain, name):
    prompt, params = FEATURES[name]
    answer = read(server.generate(prompt, **params))
    assert same(plain[name], answer), (plain[name], answer)


def test_requests_with_different_wishes_share_a_batch(server, plain):
    """Greedy ones of every kind, and sampled ones beside them."""
    seeds = (5, 6, 7)
    alone = {seed: sample(server, seed) for seed in seeds}
    names = [*FEATURES]
    with ThreadPoolExecutor(len(names) + len(seeds)) as pool:
        sampled = pool.map(lambda seed: sample(server, seed), seeds)
        answers = [*pool.map(lambda name: ask(server, name), names)]
    assert [name for name, one in zip(names, answers, strict=True) if not same(plain[name], one)] == []
    assert dict(zip(seeds, sampled, strict=True)) == alone


def sample(server, seed):
    """Tokens of a sampled answer with every filter."""
    params = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "max_new_tokens": 24}
    return server.generate(LIST, sampling_seed=seed, **params)["output_ids"]


def ask(server, name):
    prompt, params = FEATURES[name]
    return read(server.generate(prompt, **params))


def test_a_seed_gives_one_text_whoever_is_beside_it(server):
    params = {"temperature": 1.0, "max_new_tokens": 24}
    alone = [server.generate(CODE, sampling_seed=seed, **params)["output_ids"] for seed in (5, 6)]
    beside = server.generate_all([CODE] * 4, sampling_seed=5, **params)
    assert alone[0] != alone[1]
    assert [answer["output_ids"] for answer in beside] == [alone[0]] * 4
    unseeded = server.generate_all([CODE] * 4, **params)
    assert len({tuple(answer["output_ids"]) for answer in unseeded}) > 1


QUESTION = chat("What is your favourite colour?")
TOP = 8
SAMPLES = 240


def test_samples_follow_the_targets_own_distribution(server):
    answers = server.generate_all([QUESTION] * SAMPLES, temperature=1.0, top_k=TOP, max_new_tokens=4)
    tokens = torch.tensor([answer["output_ids"] for answer in answers])
    ids, known = prompt_ids(server), {}

    def after(context):
        if context not in known:
            known[context] = top_probs(server, [*ids, *context])
        return known[context]

    for depth in (1, 2, 3):
        assert conditional_p(tokens[:, :depth], after) > ALPHA


def prompt_ids(server):
    """Token ids of the question."""
    answer = server.generate(QUESTION, max_new_tokens=1, return_logprob=True, logprob_start_len=0)
    return [entry[1] for entry in answer["meta_info"]["input_token_logprobs"]]


def top_probs(server, ids):
    """[V] the distribution after these ids, of the likeliest tokens only."""
    answer = server.generate(ids, max_new_tokens=1, return_logprob=True, top_logprobs_num=TOP)
    probs = torch.zeros(49152, dtype=torch.float64)
    for value, token, _ in answer["meta_info"]["output_top_logprobs"][0]:
        probs[token] = value
    chosen = probs != 0
    probs[chosen] = probs[chosen].exp()
    return probs / probs.sum()


def test_streams_and_the_openai_endpoints_say_the_same(server, plain):
    whole = server.generate(CODE, max_new_tokens=24)["text"]
    body = {"text": CODE, "sampling_params": {"temperature": 0, "max_new_tokens": 24}, "stream": True}
    pieces = [json.loads(line[6:]) for line in server.post("/generate", body, raw=True) if b"{" in line]
    assert pieces[-1]["text"] == whole
    assert 1 < len(pieces) < 24  # several tokens a piece
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    common = {"model": "x", "temperature": 0, "max_tokens": 24}
    answer = server.post("/v1/chat/completions", {**common, "messages": messages})
    assert "Paris" in answer["choices"][0]["message"]["content"]
    lines = server.post("/v1/chat/completions", {**common, "messages": messages, "stream": True}, raw=True)
    parts = [json.loads(line[6:])["choices"] for line in lines if b"{" in line]
    said = "".join(one[0]["delta"].get("content") or "" for one in parts if one)
    assert said == answer["choices"][0]["message"]["content"]
    completion = server.post("/v1/completions", {**common, "prompt": CODE, "n": 2})
    assert [choice["text"] for choice in completion["choices"]] == [whole] * 2


def test_a_client_that_goes_away_leaves_the_others_alone(server, plain):
    body = {"text": FACT, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}, "stream": True}
    gone = server.post("/generate", body, raw=True)
    gone.readline()
    gone.close()
    assert same(plain["ignore eos"], ask(server, "ignore eos"))


def test_a_request_can_be_aborted(server, plain):
    answers = []
    params = {"max_new_tokens": 600, "ignore_eos": True, "rid": "to-be-aborted"}
    thread = threading.Thread(target=lambda: answers.append(server.generate(FACT, **params)))
    thread.start()
    while thread.is_alive():
        try:
            server.post("/abort_request", {"rid": "to-be-aborted"})
        except urllib.error.HTTPError as error:
            pytest.fail(f"abort was refused: {error}")
        thread.join(0.5)
    assert answers[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert same(plain["stop string"], ask(server, "stop string"))


def test_a_streamed_answer_can_be_aborted_in_the_middle(server, plain):
    """The client stays, and is told."""
    sampling = {"temperature": 0, "max_new_tokens": 800, "ignore_eos": True}
    body = {"text": FACT, "sampling_params": sampling, "stream": True, "rid": "to-be-aborted-too"}
    with server.post("/generate", body, raw=True) as lines:
        lines.readline()
        server.post("/abort_request", {"rid": "to-be-aborted-too"})
        pieces = [json.loads(line[6:]) for line in lines if b"{" in line]
    info = pieces[-1]["meta_info"]
    assert info["finish_reason"]["type"] == "abort"
    assert info["completion_tokens"] < 800
    assert same(plain["json"], ask(server, "json"))


def test_counters_are_where_sglang_has_them(server):
    info = server.generate(CODE, max_new_tokens=24)["meta_info"]
    assert info["spec_verify_ct"] > 0
    assert info["spec_accept_length"] == pytest.approx(23 / info["spec_verify_ct"], abs=0.5)
    assert server.get("/health") is not None


def test_our_counters_are_beside_sglangs(server):
    """One request alone: each of its cycles is counted once, with what was drafted, accepted and spent."""
    before = counters(server)
    info = server.generate(CODE, max_new_tokens=24, ignore_eos=True)["meta_info"]
    after = counters(server)
    grown = {name: value - before[name] for name, value in after.items()}
    cycles = info["spec_verify_ct"]
    assert grown["dflash_core:cycles_total"] == cycles
    assert (
        grown["dflash_core:verified_nodes_total"] <= grown["dflash_core:drafted_tokens_total"] <= 7 * cycles
    )
    # the prompt gives the first token, each cycle one more than it accepts; the last one may give too many
    assert 0 <= 1 + cycles + grown["dflash_core:accepted_tokens_total"] - 24 < 8
    spent = [value for name, value in grown.items() if name.startswith("dflash_core:cycle_seconds_total")]
    assert len(spent) == 4
    assert all(0 < seconds < 60 for seconds in spent)
    assert "sglang:spec_accept_length" in server.get("/metrics")


def counters(server):
    """Our counters by name, labels included."""
    lines = [line.split() for line in server.get("/metrics").splitlines()]
    return {line[0]: float(line[1]) for line in lines if line and line[0].startswith("dflash_core:")}


def test_the_cache_can_be_flushed(server, plain):
    assert "flushed" in server.post("/flush_cache")
    assert same(plain["json"], ask(server, "json"))
