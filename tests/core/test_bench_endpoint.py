"""Endpoints: what is measured is what a server sent, whatever dialect of statistics it speaks."""

import json

import pytest
from openai_server import WORDS, OpenAIServer

from dflash_core.bench.answer import drafting_of
from dflash_core.bench.requests import Ask
from dflash_core.bench.systems.base import Job
from dflash_core.bench.systems.endpoint import deliveries, endpoint
from dflash_core.bench.systems.extras import drafting_between, drafting_of_chunks, read_counters
from dflash_core.bench.systems.stream import EndpointError, events
from dflash_core.bench.workbench import Workbench
from dflash_core.errors import SettingsError

CHAT = Ask("a/0", "a", ({"role": "user", "content": "Count."},))
TEXT = Ask("a/1", "a", prompt="one")

SGLANG = {
    "sglext": {
        "routed_experts": None,
        "spec_tokens_details": {
            "spec_accept_length": 8 / 3,
            "spec_verify_ct": 3,
            "spec_correct_drafts_histogram": [1, 1, 0, 1],
            "spec_num_correct_drafts": 4,
            "spec_num_proposed_drafts": 9,
        },
    }
}
OLDER_SGLANG = {
    "meta_info": {
        "completion_tokens": 8,
        "spec_verify_ct": 3,
        "spec_accept_histogram": [1, 1, 0, 1],
        "spec_accept_token_num": 4,
        "spec_draft_token_num": 9,
    }
}
VLLM = {
    "metrics": {
        "speculative_decoding": {
            "acceptance_histogram": {"0": 1, "1": 1, "3": 1},
            "num_spec_steps": 3,
            "num_accepted_draft_tokens": 4,
            "num_draft_tokens": 9,
            "num_spec_tokens": 3,
        }
    }
}


def system(server, at_once=1, **options):
    made = endpoint(Workbench({"temperature": 0.0}), {"url": server.address, **options})
    made.open(at_once)
    return made


def jobs(*asks, tokens=8, arrivals=None):
    times = arrivals or [None] * len(asks)
    return [Job(ask, 0, 7, tokens, when) for ask, when in zip(asks, times, strict=True)]


def test_a_chat_and_a_text_are_asked_as_such_and_their_words_come_back():
    with OpenAIServer() as server:
        chat, text = system(server).serve(jobs(CHAT, TEXT))
        assert chat.text == text.text == "".join(WORDS)
        assert (chat.new_tokens, chat.prompt_tokens, chat.finish_reason) == (8, 5, "length")
        asked, completed = server.requests
        assert asked["messages"] == [{"role": "user", "content": "Count."}]
        assert completed["prompt"] == "one"
        assert (asked["model"], asked["seed"], asked["temperature"], asked["max_tokens"]) == (
            "tiny",
            7,
            0.0,
            8,
        )


def test_the_first_token_and_the_pace_are_those_of_the_server():
    with OpenAIServer(delay=0.05) as server:
        [found] = system(server).serve(jobs(CHAT))
    assert found.first >= 0.05
    assert found.end >= 8 * 0.05
    assert found.seconds_a_token >= 0.04
    assert found.decode_tokens == 7


def test_chunks_of_several_tokens_are_counted_as_the_server_counts():
    with OpenAIServer(chunk=3) as server:
        [found] = system(server).serve(jobs(CHAT))
    assert [count for _, count in found.deliveries] == [1, 3, 3, 1]


def test_a_server_that_does_not_count_is_counted_by_chunk_and_that_is_said():
    with OpenAIServer(chunk=3, counted=False) as server:
        [found] = system(server).serve(jobs(CHAT))
    assert found.new_tokens == 4
    assert "chunks" in found.notes["tokens"]


@pytest.mark.parametrize(
    "placed",
    [{"final": SGLANG}, {"extras": OLDER_SGLANG}, {"final": VLLM}],
    ids=["sglang", "older sglang", "vllm"],
)
def test_statistics_of_drafts_are_read_in_both_dialects(placed):
    with OpenAIServer(**placed) as server:
        [found] = system(server).serve(jobs(CHAT))
    assert found.drafting.lengths == (0, 1, 1, 0, 1)
    assert (found.drafting.verified, found.drafting.accepted) == (9, 4)
    assert found.drafting.slot_verified == (3, 2, 1)
    assert found.drafting.slot_accepted == (2, 1, 1)


def test_totals_without_a_histogram_keep_the_mean():
    [chunk] = [{"meta_info": {"spec_verify_ct": 4, "spec_accept_length": 2.5}}]
    found = drafting_of_chunks([chunk])
    assert (found.cycles, found.committed, found.verified) == (4, 10, None)
    assert drafting_of_chunks([{"choices": [{"delta": {}}]}]) is None
    assert drafting_of_chunks([{"metrics": {"speculative_decoding": None}}]) is None


def counters(cycles, drafts, positions):
    lines = [f'vllm:spec_decode_num_drafts_total{{engine="0"}} {cycles}.0']
    lines.append(f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafts}.0')
    lines.append(f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {sum(positions)}.0')
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{p}"}} {n}.0'
        for p, n in enumerate(positions)
    ]
    return "# HELP x\n" + "\n".join(lines) + "\n"


def test_counters_of_a_vllm_server_stand_in_when_there_was_one_request():
    readings = iter([counters(10, 30, [5, 5, 5]), counters(13, 39, [7, 6, 6])])
    with OpenAIServer(metrics=lambda: next(readings)) as server:
        [found] = system(server).serve(jobs(CHAT))
    assert found.drafting.lengths == (0, 1, 1, 0, 1)
    assert (found.drafting.verified, found.drafting.accepted) == (9, 4)
    assert drafting_between(read_counters("nothing"), read_counters("nothing")) is None


def test_what_a_strict_server_refuses_is_left_out_and_not_asked_for_again():
    with OpenAIServer(refuse=("return_spec_tokens_details", "stream_options")) as server:
        asked = system(server)
        first, second = asked.serve(jobs(CHAT, TEXT))
        assert first.error is None
        assert second.error is None
        assert len(server.requests) == 2
        assert "stream_options" not in server.requests[0]


FILTERS = ("top_k", "top_p", "min_p")


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"temperature": 0.7}, {"top_k": -1, "top_p": 1.0, "min_p": 0.0}),
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.9}, {"top_k": 5, "top_p": 0.9, "min_p": 0.0}),
        ({"temperature": 0.0}, {}),
        ({"temperature": 0.0, "top_k": 5}, {"top_k": 5}),
    ],
)
def test_filters_that_are_off_are_said_where_a_servers_own_would_apply(settings, sent):
    with OpenAIServer() as server:
        endpoint(Workbench(settings), {"url": server.address}).serve(jobs(CHAT))
        [body] = server.requests
    assert {name: body[name] for name in FILTERS if name in body} == sent


def test_a_server_without_such_filters_is_asked_without_and_still_counts():
    with OpenAIServer(refuse=("top_k", "return_spec_tokens_details")) as server:
        [found] = endpoint(Workbench({"temperature": 0.7}), {"url": server.address}).serve(jobs(CHAT))
        [body] = server.requests
    assert (found.error, found.notes) == (None, {})
    assert {name: body[name] for name in FILTERS if name in body} == {"top_p": 1.0}


def test_a_request_that_fails_is_an_answer_with_the_servers_reason():
    with OpenAIServer(fail=(1,)) as server:
        answers = system(server).serve(jobs(CHAT, CHAT, CHAT))
    assert [a.error is None for a in answers] == [True, False, True]
    assert "500: out of memory" in answers[1].error


def test_so_many_run_at_once_as_the_level_says():
    with OpenAIServer(delay=0.02) as server:
        system(server, at_once=3).serve(jobs(*[CHAT] * 7))
        assert server.most == 3


def test_arrivals_do_not_wait_for_answers_and_latency_counts_from_them():
    with OpenAIServer(delay=0.05) as server:
        found = system(server, at_once=None).serve(jobs(CHAT, CHAT, CHAT, arrivals=[0.0, 0.01, 0.02]))
        assert server.most == 3
    assert [a.issued for a in found] == [0.0, 0.01, 0.02]
    assert all(a.end >= 0.4 for a in found)


def test_nobody_there_and_no_address_are_sentences():
    with pytest.raises(EndpointError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        endpoint(Workbench({}), {"url": "http://127.0.0.1:9"})
    with pytest.raises(EndpointError, match="it must look like"):
        endpoint(Workbench({}), {"url": "localhost:8000"})
    with pytest.raises(SettingsError, match="needs url"):
        endpoint(Workbench({}), {})
    with pytest.raises(SettingsError, match="no option 'uri'"):
        endpoint(Workbench({}), {"uri": "x"})
    with pytest.raises(SettingsError, match="DFLASH_NO_SUCH_KEY"):
        endpoint(Workbench({}), {"url": "http://x", "key_env": "DFLASH_NO_SUCH_KEY"})


def test_events_are_joined_by_line_and_end_with_done():
    lines = [
        b": hi\n",
        b"data: {\n",
        b'data: "a": 1}\n',
        b"\n",
        b"data:2\r\n",
        b"\r\n",
        b"data: [DONE]\n",
        b"\n",
    ]
    found = list(events([*lines, b"data: 3\n", b"\n"]))
    assert json.loads(found[0]) == {"a": 1}
    assert found[1:] == ["2"]
    assert list(events([b"data: 1\n"])) == ["1"]


def test_without_counts_the_tokens_are_shared_out_and_none_is_lost():
    found = deliveries([(0.1, None), (0.2, None), (0.3, None), (0.4, None)], 12)
    assert next(count for _, count in found) == 1
    assert sum(count for _, count in found) == 12
    assert deliveries([(0.1, None)], 5) == ((0.1, 5),)
    assert deliveries([], 0) == ()


def test_a_histogram_of_lengths_is_what_our_own_engine_would_have_counted():
    [chunk] = [{"choices": [{"meta_info": {"spec_correct_drafts_histogram": [2, 1]}}]}]
    assert drafting_of_chunks([chunk]).lengths == drafting_of([1, 1, 2]).lengths
