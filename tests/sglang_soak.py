"""Clients that come, go and change their minds, against a real SGLang server with little room, for minutes.

In the engine's environment, from the repository's root (`make soak-sglang`):

    python tests/sglang_soak.py --minutes 20 [--tree-budget 16] [--seed 0] [--json FILE]

Eight clients ask for greedy answers of random lengths; some hang up in mid-stream, some abort. Every answer
that is finished has to be what SGLang says without speculation. At the end no slot may be in use. Memory is
reported. Exit code 1 says that something was wrong.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

os.environ["SGLANG_PLATFORM"] = "dflash_cpu"
sys.path.insert(0, str(Path(__file__).parent))

from sglang_asks import benchmark_prompts
from sglang_server import serving, speculative

CLIENTS = 8
LONGEST = 160
SLOTS = 1024
HANGS_UP, ABORTS = 0.15, 0.15
REPORT = 30
"""Seconds between two lines of progress."""


class Clients:
    """Threads that ask until a time is over, and what came of it."""

    def __init__(self, server, prompts, expected, seed, until):
        self.server, self.prompts, self.expected = server, prompts, expected
        self.seed, self.until = seed, until
        self.counts, self.wrong = Counter(), []
        self.threads = [threading.Thread(target=self.run, args=(index,)) for index in range(CLIENTS)]

    def run(self, index):
        rng = random.Random(f"{self.seed}:{index}")
        while time.monotonic() < self.until and self.server.process.poll() is None:
            which, length = rng.randrange(len(self.prompts)), rng.randint(1, LONGEST)
            kind = rng.random()
            try:
                if kind < HANGS_UP:
                    self.hang_up(which, rng.randint(1, 12))
                else:
                    rid = f"{index}-{rng.getrandbits(64):x}"
                    if kind < HANGS_UP + ABORTS:
                        threading.Timer(rng.uniform(0.1, 4), self.abort, (rid,)).start()
                    self.ask(which, length, rid)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the report
                self.wrong.append(f"{type(error).__name__}: {error}")
                time.sleep(1)

    def ask(self, which, length, rid):
        answer = self.server.generate(self.prompts[which], max_new_tokens=length, ignore_eos=True, rid=rid)
        info = answer["meta_info"]
        self.counts["tokens"] += len(answer["output_ids"])
        self.counts["retractions"] += info.get("num_retractions", 0)
        aborted = info["finish_reason"]["type"] == "abort"
        self.counts["aborted" if aborted else "finished"] += 1
        count = len(answer["output_ids"])
        right = answer["output_ids"] == self.expected[which][:count] and (aborted or count == length)
        if not right:
            self.wrong.append(f"prompt {which}, {length} tokens: {answer['output_ids']}")

    def hang_up(self, which, pieces):
        sampling = {"temperature": 0, "max_new_tokens": LONGEST, "ignore_eos": True}
        body = {"input_ids": self.prompts[which], "sampling_params": sampling, "stream": True}
        with self.server.post("/generate", body, raw=True) as stream:
            for _ in range(pieces):
                stream.readline()
        self.counts["hung up"] += 1

    def abort(self, rid):
        try:
            self.server.post("/abort_request", {"rid": rid})
        except OSError as error:
            self.wrong.append(f"abort: {error}")


def memory(server):
    """MiB of all the server's processes."""
    parent = psutil.Process(server.process.pid)
    return sum(one.memory_info().rss for one in [parent, *parent.children(recursive=True)]) / 2**20


def soak(minutes, tree_budget, seed):
    """Run it; the report."""
    prompts = benchmark_prompts(12)
    folder = Path(tempfile.mkdtemp())
    with serving(folder, "--max-running-requests", "8") as server:
        answers = server.generate_all(prompts, max_new_tokens=LONGEST, ignore_eos=True)
    expected = [answer["output_ids"] for answer in answers]
    tree = ("--dflash-tree-budget", str(tree_budget)) if tree_budget else ()
    room = ("--max-total-tokens", str(SLOTS), "--schedule-conservativeness", "0.1", "--page-size", "4")
    flags = speculative(*tree, *room, "--max-running-requests", str(CLIENTS), "--enable-metrics")
    with serving(folder, *flags) as server:
        begin = time.monotonic()
        clients = Clients(server, prompts, expected, seed, begin + 60 * minutes)
        [thread.start() for thread in clients.threads]
        grown = []
        while any(thread.is_alive() for thread in clients.threads):
            time.sleep(min(REPORT, 60 * minutes / 8))
            grown.append(memory(server))
            spent = time.monotonic() - begin
            print(f"{spent:.0f} s  {dict(clients.counts)}  {grown[-1]:.0f} MiB", file=sys.stderr, flush=True)
        alive = server.process.poll() is None
        used = None
        if alive:
            used = server.used_when_idle()
        log = server.log.read_text()
    return {
        "minutes": round((time.monotonic() - begin) / 60, 2),
        **clients.counts,
        "wrong": clients.wrong[:5],
        "errors": len(clients.wrong),
        "server alive": alive,
        "slots in use at the end": used,
        "tracebacks": log.count("Traceback"),
        "leaks reported": log.count("leak"),
        "MiB": [round(value) for value in (grown[len(grown) // 4], grown[-1])],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--tree-budget", type=int, default=16, help="0 verifies chains")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the report here")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))  # and the server with it
    report = soak(given.minutes, given.tree_budget, given.seed)
    text = json.dumps(report, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    bad = report["errors"] or report["tracebacks"] or report["leaks reported"] or not report["server alive"]
    sys.exit(bool(bad or report["slots in use at the end"]))


if __name__ == "__main__":
    main()
