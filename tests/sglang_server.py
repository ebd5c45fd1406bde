"""Real SGLang servers on loopback ports, for tests: the unmodified launcher, in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DRAFT = ROOT / "drafts/SmolLM2-135M-Instruct-DFlash-b8-borrowed"
"""SGLang's own DFLASH knows its layout, so that both can be compared."""
SHIPPED = ROOT / "drafts/SmolLM2-135M-Instruct-DFlash2-b8"
PATIENCE = 600
"""Seconds that a server may take to come up, on a machine that others use as well."""


def cache_dir():
    """Where the converted demo model lies."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash-core"


def model():
    """The folder of the real target; made by the transformers engine, which is not in this environment."""
    return cache_dir() / "models/SmolLM2-135M-Instruct"


class Server:
    """One server and what tests ask of it."""

    def __init__(self, process, port, log):
        self.process, self.port, self.log = process, port, log

    def get(self, path):
        """The body of a GET, as text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=120) as answer:
            return answer.read().decode()

    def post(self, path, body=None, raw=False):
        """The answer to a POST: parsed, or its bytes line by line as they come."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body or {}).encode(),
            {"Content-Type": "application/json"},
        )
        if raw:
            return urllib.request.urlopen(request, timeout=PATIENCE)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def generate(self, prompt, **params):
        """One greedy answer unless `params` say otherwise: a string, or token ids."""
        given = {"input_ids": prompt} if isinstance(prompt, list) else {"text": prompt}
        extra = {name: params.pop(name) for name in [*params] if name in TOP_LEVEL}
        if "custom_logit_processor" in extra:
            extra["custom_logit_processor"] = no_repeats()
        sampling = {"temperature": 0, "max_new_tokens": 32, **params}
        return self.post("/generate", {**given, "sampling_params": sampling, **extra})

    def generate_all(self, prompts, workers=8, **params):
        """Answers to all prompts, so many at a time."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda prompt: self.generate(prompt, **params), prompts))

    def used_slots(self):
        """Slots that belong to a request or to a kept prefix, by SGLang's own count (`--enable-metrics`)."""
        names = ("sglang:num_used_tokens{", "sglang:kv_used_tokens{")
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(names)]
        assert lines, "SGLang has no such metric any more"
        return max(float(line.split()[-1]) for line in lines)

    def used_when_idle(self):
        """The same after everything was dropped that nobody runs."""
        self.post("/flush_cache")
        self.generate([2], max_new_tokens=1)  # SGLang counts when it runs something
        self.post("/flush_cache")
        time.sleep(2)
        return self.used_slots()


TOP_LEVEL = (
    *("return_logprob", "top_logprobs_num", "logprob_start_len", "rid", "return_hidden_states"),
    "custom_logit_processor",
)


def no_repeats():
    """A logits processor of SGLang's own that looks at what was produced, as requests bring it."""
    from sglang.srt.sampling.custom_logit_processor import DeepseekOCRNoRepeatNGramLogitProcessor

    return DeepseekOCRNoRepeatNGramLogitProcessor.to_str()


@contextmanager
def serving(tmp_path, *flags, **environment):
    """A server on the CPU platform, stopped at the end whatever happens."""
    port = free_port()
    log = tmp_path / f"server-{port}.log"
    command = [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(model()), "--device", "cpu"),
        *("--dtype", "float32", "--host", "127.0.0.1", "--port", str(port), "--skip-server-warmup"),
        *("--context-length", "2048", "--random-seed", "1", "--max-total-tokens", "16384"),
        *("--enable-custom-logit-processor", *flags),
    ]
    # one name is not enough where several servers were ever started: pins and flags come from here alone
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DFLASH_")}
    variables |= {"SGLANG_PLATFORM": "dflash_cpu", "DFLASH_FAST": "off", "HF_HUB_OFFLINE": "1", **environment}
    place = {"env": variables, "cwd": tmp_path, "start_new_session": True}
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, **place)
    server = Server(process, port, log)
    try:
        wait_until_up(server)
        yield server
    finally:
        stop(process)


def speculative(*flags, draft=DRAFT):
    """Flags of a server that decodes with a draft, by default the borrowed one."""
    return ("--speculative-algorithm", "DFLASH_CORE", "--speculative-draft-model-path", str(draft), *flags)


def wait_until_up(server):
    """Until it answers, or raise with what it wrote."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            break
        try:
            server.get("/health")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(1)
        else:
            return
    raise AssertionError(f"the server did not come up:\n{server.log.read_text()[-4000:]}")


def stop(process):
    """End the server and the processes that it started, which are in a group of their own."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            break
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            continue
    process.wait(20)


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def embedded_cycles(prompts, tokens, tree_budget=None, draft=DRAFT, **options):
    """What the embedded engine answers and how many cycles it needs, in the project's own environment.

    `options` are the drafter's.
    """
    python = ROOT / ".venv/bin/python"
    if not python.exists():
        pytest.skip(f"{python} is missing, in which the embedded engine runs; `make test` makes it")
    script = ROOT / "tests/embedded_cycles.py"
    asked = {"prompts": prompts, "tokens": tokens, "tree_budget": tree_budget, "options": options}
    command = [str(python), str(script), str(draft)]
    # one thread, since an idle server keeps a core busy, and two would wait for each other
    place = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "capture_output": True, "text": True}
    done = subprocess.run(command, input=json.dumps(asked), check=True, **place)
    return json.loads(done.stdout)
