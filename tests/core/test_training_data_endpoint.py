"""An OpenAI-compatible server gives the same training data, however busy, broken or away it is in between."""

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tiny_folder import tiny_folder, write_prompts

from dflash_backends.transformers.tokenizer import load_tokenizer
from dflash_core.cli import main
from dflash_core.errors import RequestError
from dflash_core.training.data import AnswerStore, read_prompts
from dflash_core.training.data.answering import DECLINED, TOO_LONG, AnswerOptions
from dflash_core.training.data.endpoint import Endpoint, EndpointError, endpoint_url, only_model
from dflash_core.training.data.remote import ask_endpoint
from dflash_core.training.data.store import read_sequences, records, shards

OPTIONS = AnswerOptions(max_prompt_tokens=60, max_new_tokens=40, max_batch=4, shard=5)


class Server:
    """Answers `echo: <question>`; `respond` may be replaced by what gives (status, body, headers)."""

    def __init__(self):
        self.asked = []
        self.now = self.most = 0
        self.models = ["tiny"]
        self.respond = lambda body, number: self.echo(body)
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send(200, {"data": [{"id": name} for name in outer.models]}, {})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.asked.append((self.path, body, dict(self.headers)))
                    number = len(outer.asked)
                    outer.now += 1
                    outer.most = max(outer.most, outer.now)
                try:
                    answer = outer.respond(body, number)
                finally:
                    with lock:
                        outer.now -= 1
                if answer is None:
                    self.connection.close()
                else:
                    self.send(*answer)

            def send(self, status, body, headers):
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @staticmethod
    def echo(body, finish="stop"):
        text = f"echo: {body['messages'][-1]['content']}"
        return 200, {"choices": [{"message": {"content": text}, "finish_reason": finish}]}, {}


@pytest.fixture
def server():
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_tokenizer(folder)


@pytest.fixture
def prompts(tmp_path):
    return read_prompts([write_prompts(tmp_path / "prompts.jsonl", [f"number {i}" for i in range(23)])])


@pytest.fixture
def ask(server, tokenizer, prompts, tmp_path):
    def run(options=OPTIONS, **changes):
        endpoint = Endpoint(server.url, "tiny", **{"wait": 0.001, **changes})
        store = AnswerStore(tmp_path / "data", {"target": "tiny"})
        return ask_endpoint(endpoint, tokenizer, prompts, store, options), store

    return run


def answered(store):
    """Prompt id -> its tokens; every id must be there once."""
    data = read_sequences(store.folder)
    found = {}
    for index, record in enumerate(r for shard in shards(store.folder) for r in records(shard)):
        assert record["id"] not in found
        found[record["id"]] = data.tokens[int(data.offsets[index]) : int(data.offsets[index + 1])].tolist()
    assert len(found) == len(data)
    return found


def expected(tokenizer, prompt, end=True):
    answer = tokenizer.encode_answer(f"echo: {prompt.text}")
    return [*tokenizer.encode_chat(prompt.chat()), *answer, *([tokenizer.eos_token_id] if end else [])]


def test_answers_are_tokenised_as_the_target_would_and_end_with_its_end_token(
    ask, tokenizer, prompts, server
):
    done, store = ask()
    assert done.answers == 23
    assert answered(store) == {p.id: expected(tokenizer, p) for p in prompts}
    path, body, _ = server.asked[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("tiny", 40, 0.0)
    assert len({body["seed"] for _, body, _ in server.asked}) == 23


def test_an_answer_that_was_cut_has_no_end_token(ask, tokenizer, prompts, server):
    server.respond = lambda body, number: Server.echo(body, "length")
    _, store = ask()
    assert answered(store) == {p.id: expected(tokenizer, p, end=False) for p in prompts}
    assert {r["finish"] for shard in shards(store.folder) for r in records(shard)} == {"length"}


def test_as_many_requests_as_asked_for_are_under_way_at_once_and_no_more(ask, server):
    barrier = threading.Barrier(4, timeout=30)

    def respond(body, number):
        if number <= 20:
            barrier.wait()  # passes only when four are here
        return Server.echo(body)

    server.respond = respond
    done, _ = ask()
    assert (done.answers, server.most) == (23, 4)


def test_a_busy_or_failing_server_is_asked_again(ask, server):
    tried = Counter()

    def respond(body, number):
        question = body["messages"][-1]["content"]
        tried[question] += 1
        if tried[question] == 1:
            return 429, {"error": {"message": "slow down"}}, {"Retry-After": "0"}
        if tried[question] == 2:
            return 503, b"<html>overloaded</html>", {}
        if tried[question] == 3:
            return None
        return Server.echo(body)

    server.respond = respond
    done, _ = ask()
    assert done.answers == 23
    assert set(tried.values()) == {4}


def test_a_server_that_stays_broken_ends_in_a_sentence_and_what_was_answered_is_kept(ask, server):
    server.respond = lambda body, n: Server.echo(body) if n <= 9 else (500, {"error": "out of order"}, {})
    with pytest.raises(
        EndpointError, match=r"answered 500: out of order \(3 tries\)\. Is the server running"
    ):
        ask(tries=3)
    server.respond = lambda body, number: Server.echo(body)
    done, store = ask()
    assert 0 < done.left == done.answers <= 23 - 5
    assert len(answered(store)) == 23


def test_a_server_that_is_not_there_is_named(tokenizer, prompts, tmp_path):
    endpoint = Endpoint("http://127.0.0.1:9", "tiny", tries=2, wait=0.001)
    store = AnswerStore(tmp_path / "data", {"target": "tiny"})
    with pytest.raises(EndpointError, match=r"http://127\.0\.0\.1:9 cannot be reached: .*refused"):
        ask_endpoint(endpoint, tokenizer, prompts, store, OPTIONS)


def test_a_server_that_takes_too_long_is_given_up(ask, server):
    server.respond = lambda body, number: time.sleep(1) or Server.echo(body)
    with pytest.raises(EndpointError, match="timed out"):
        ask(timeout=0.1, tries=1)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ((401, {"error": {"message": "no key"}}, {}), r"answered 401: no key\. Name a variable with the key"),
        ((404, {"detail": "Not Found"}, {}), r"answered 404: Not Found\. The address usually ends in /v1"),
        ((200, b"<html>", {}), "is not JSON: <html>"),
        ((200, b"[" * 100_000, {}), r"is not JSON: \[\[\["),
        ((404, b"[" * 100_000, {}), "answered 404"),
        ((200, {"object": "list"}, {}), "no chat completion"),
        ((200, {"choices": []}, {}), "no chat completion"),
        ((200, [1], {}), "no chat completion"),
    ],
)
def test_what_would_go_wrong_for_every_prompt_is_said_at_once(ask, server, answer, named):
    server.respond = lambda body, number: answer
    with pytest.raises(EndpointError, match=named):
        ask()
    assert len(server.asked) <= 2 * OPTIONS.max_batch


def test_prompts_that_the_server_refuses_are_counted_and_tried_again_another_time(ask, server):
    refuse = (400, {"error": {"message": "this one is not allowed"}}, {})
    silent = (200, {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}, {})
    wrong = {"number 3": refuse, "number 7": silent}
    server.respond = lambda body, n: wrong.get(body["messages"][-1]["content"]) or Server.echo(body)
    done, _ = ask()
    assert (done.answers, done.left_out) == (21, {DECLINED: 2})
    wrong.clear()
    done, store = ask()
    assert (done.left, done.answers) == (2, 2)
    assert len(answered(store)) == 23


def test_prompts_that_are_too_long_are_not_sent(ask, server):
    done, _ = ask(AnswerOptions(max_prompt_tokens=11, max_new_tokens=40))
    assert done.left_out == {TOO_LONG: 13}
    assert len(server.asked) == 10


def test_what_the_template_needs_is_sent_along(ask, server):
    ask(AnswerOptions(max_prompt_tokens=60, max_new_tokens=40, template={"enable_thinking": False}))
    assert server.asked[0][1]["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_tokenizer_without_a_template_is_refused(prompts, tmp_path, server):
    class Bare:
        eos_token_id = None

        def encode_chat(self, messages):
            raise RequestError("The tokenizer of bare has no chat template.")

    store = AnswerStore(tmp_path / "data", {"target": "tiny"})
    with pytest.raises(RequestError, match="no chat template"):
        ask_endpoint(Endpoint(server.url, "tiny"), Bare(), prompts, store, OPTIONS)


def test_the_address_may_be_written_in_the_usual_ways():
    assert endpoint_url("http://host:8000/v1/") == "http://host:8000/v1"
    assert endpoint_url("https://host/v1/chat/completions") == "https://host/v1"
    for wrong in ("host:8000", "ftp://host/v1", "http://", "http://host:port/v1"):
        with pytest.raises(EndpointError, match="is no address of an endpoint"):
            endpoint_url(wrong)


def test_the_only_model_of_a_server_needs_no_name(server):
    assert only_model(server.url, None, 1) == "tiny"
    server.models = ["a", "b"]
    with pytest.raises(EndpointError, match=r"serves a, b\. Name the model"):
        only_model(server.url, None, 1)


def test_the_command_asks_a_server_with_a_key_and_reads_the_tokenizer_only(
    tmp_path, folder, server, capsys, monkeypatch
):
    monkeypatch.setenv("KEY_OF_A_TEST", "sesame")
    write_prompts(tmp_path / "prompts.jsonl", ["one", "two"])
    bare = tmp_path / "tokenizer"
    bare.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (folder / name).exists():
            (bare / name).write_bytes((folder / name).read_bytes())
    arguments = ["data", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path / "out"), "--json"]
    arguments += ["--target", str(bare), "--endpoint", server.url, "--api-key-env", "KEY_OF_A_TEST"]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert not stop.value.code
    assert json.loads(capsys.readouterr().out)["answers"] == 2
    assert server.asked[0][2]["Authorization"] == "Bearer sesame"
    header = json.loads((tmp_path / "out/dataset.json").read_text())
    assert header["model"] == "tiny"
    assert "sesame" not in json.dumps(header)
