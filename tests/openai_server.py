"""A small server that streams completions as OpenAI's does, with what SGLang or vLLM add."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ("one", " two", " three", " four", " five", " six", " seven", " eight")


class OpenAIServer:
    """Answers every request with the first `max_tokens` of the same words, several tokens a chunk if asked.

    Attributes:
        requests: bodies of the requests that were accepted.
        address: to be given as `url=`.
    """

    def __init__(
        self,
        *,
        delay=0.0,
        chunk=1,
        extras=None,
        final=None,
        refuse=(),
        fail=(),
        counted=True,
        metrics=None,
    ):
        """
        Args:
            delay: seconds before each chunk. chunk: words of a chunk after the first.
            extras: merged into the last choice's chunk. final: into the chunk with the usage.
            refuse: names in a body that are answered with 400.
            fail: numbers of requests (from 0) that are answered with 500.
            counted: whether usage is reported. metrics: function that gives the page of counters.
        """
        self.delay, self.chunk, self.extras, self.final = delay, chunk, extras or {}, final or {}
        self.refuse, self.fail, self.counted, self.metrics = refuse, fail, counted, metrics
        self.requests, self.running, self.most = [], 0, 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def enter(self, body):
        """Count a request in; its number."""
        with self._lock:
            self.requests.append(body)
            self.running += 1
            self.most = max(self.most, self.running)
            return len(self.requests) - 1

    def leave(self):
        with self._lock:
            self.running -= 1


def _handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            """Quiet."""

        def do_GET(self):
            if self.path == "/v1/models":
                self._plain(200, json.dumps({"data": [{"id": "tiny"}]}))
            elif self.path == "/metrics" and server.metrics:
                self._plain(200, server.metrics())
            else:
                self._plain(404, "nothing here")

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for name in server.refuse:
                if name in body:
                    self._plain(400, json.dumps({"error": {"message": f"{name} is not known"}}))
                    return
            number = server.enter(body)
            try:
                if number in server.fail:
                    self._plain(500, json.dumps({"error": {"message": "out of memory"}}))
                else:
                    self._stream(body)
            finally:
                server.leave()

        def _plain(self, status, text):
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, body):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            chat = self.path.endswith("/chat/completions")
            options = body.get("stream_options", {})
            total = min(body["max_tokens"], len(WORDS))
            if chat:
                self._send(_chunk({"delta": {"role": "assistant", "content": ""}}))
            said = 0
            while said < total:
                time.sleep(server.delay)
                upto = min(total, said + (1 if said == 0 else server.chunk))
                text = "".join(WORDS[said:upto])
                said = upto
                choice = {"delta": {"content": text}} if chat else {"text": text}
                last = server.extras if said == total else {}
                chunk = _chunk({**choice, "finish_reason": "length" if said == total else None, **last})
                if server.counted and options.get("continuous_usage_stats"):
                    chunk["usage"] = {"prompt_tokens": 5, "completion_tokens": said}
                self._send(chunk)
            if server.counted and options.get("include_usage"):
                usage = {"prompt_tokens": 5, "completion_tokens": total}
                self._send({"choices": [], "usage": usage, **server.final})
            self._raw(b": a comment that keeps the connection alive\n\ndata: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def _send(self, chunk):
            self._raw(b"data: " + json.dumps(chunk).encode() + b"\n\n")

        def _raw(self, data):
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    return Handler


def _chunk(choice):
    return {"object": "chunk", "choices": [{"index": 0, **choice}]}
