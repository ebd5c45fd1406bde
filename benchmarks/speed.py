"""Speculative against plain decoding, and against the loop of `dflash==0.1.0`, alternating in one process.

    python benchmarks/speed.py --prompts 10 --new-tokens 96
    python benchmarks/speed.py --prompts 10 --no-reference --json speed.json

For each prompt the ways of decoding run one after another, greedily, one request at a time; what is compared
is seconds outside the prefill. Medians over the prompts of a set, and of the ratios prompt by prompt.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

import dflash_core
from dflash_backends.transformers.demo_model import smollm2_folder
from dflash_core.bench.prompts import SETS, load_prompts
from dflash_core.demo import draft_folder, draft_vocab_file
from dflash_core.generation import GenerateResult, generate
from dflash_core.schedule.auto import AutoSchedule

Run = Callable[[list[int]], tuple[list[int], float, float]]
"""Prompt -> new tokens, seconds outside the prefill, acceptance length."""


def of(result: GenerateResult) -> tuple[list[int], float, float]:
    return result.tokens[0], result.stats.seconds.decode, result.stats.acceptance_length


def reference_loop(model_folder: str, draft_folder: Path, new_tokens: int) -> Run:
    """The generation loop of the `dflash` package on an untouched transformers model."""
    import dflash.model
    from dflash.model import DFlashDraftModel, dflash_generate
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    draft = DFlashDraftModel.from_pretrained(draft_folder, dtype=torch.float32).eval()

    dflash.model._cuda_time = perf_counter  # its own clock insists on a CUDA device

    def run(prompt: list[int]) -> tuple[list[int], float, float]:
        out = dflash_generate(
            draft, target, torch.tensor([prompt]), new_tokens, [2], temperature=0.0, return_stats=True
        )
        lengths = out.acceptance_lengths
        seconds = out.time_per_output_token * out.num_output_tokens
        return out.output_ids[0, len(prompt) :].tolist(), seconds, sum(lengths) / max(1, len(lengths))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=10, help="prompts a set")
    parser.add_argument(
        "--rounds", type=int, default=1, help="times each prompt is decoded each way, in turn"
    )
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--draft", type=Path, default=draft_folder())
    parser.add_argument("--draft-vocab", default=draft_vocab_file())
    parser.add_argument("--lengths", type=int, nargs="*", default=[], help="verify lengths to show as well")
    parser.add_argument("--no-reference", action="store_true", help="leave out the dflash package")
    parser.add_argument("--json", type=Path, default=None, help="write every single run here")
    arguments = parser.parse_args()

    folder = smollm2_folder()
    target = dflash_core.load_target(folder)
    draft = dflash_core.load_draft(arguments.draft, target, draft_vocab=arguments.draft_vocab)
    schedule = AutoSchedule(target, draft)
    limit = arguments.new_tokens
    ways: dict[str, Run] = {
        "plain": lambda prompt: of(generate(target, None, prompt, max_new_tokens=limit)),
        "auto": lambda prompt: of(generate(target, draft, prompt, max_new_tokens=limit, schedule=schedule)),
    }
    for length in arguments.lengths:
        ways[f"verify {length}"] = lambda prompt, length=length: of(  # type: ignore[misc]
            generate(target, draft, prompt, max_new_tokens=limit, verify_length=length)
        )
    if not arguments.no_reference:
        ways["dflash 0.1.0"] = reference_loop(str(folder), arguments.draft, limit)

    runs: list[dict[str, object]] = []
    for name in arguments.sets:
        rows: list[dict[str, tuple[list[int], float, float]]] = []
        for messages in load_prompts(name, arguments.prompts):
            prompt = target.encode_chat(messages)
            rows.append(in_turn(ways, prompt, arguments.rounds))
            for way, (tokens, seconds, length) in rows[-1].items():
                runs.append(
                    {"set": name, "way": way, "tokens": len(tokens), "seconds": seconds, "length": length}
                )
        report(name, rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1))


def in_turn(
    ways: dict[str, Run], prompt: list[int], rounds: int
) -> dict[str, tuple[list[int], float, float]]:
    """Each way's tokens and acceptance length of the last round, and its mean seconds over all rounds.

    A machine that is shared changes its speed within seconds: ways that take turns more often meet more of
    the same moments.
    """
    done = [{way: run(prompt) for way, run in ways.items()} for _ in range(rounds)]
    return {
        way: (tokens, sum(each[way][1] for each in done) / rounds, length)
        for way, (tokens, _, length) in done[-1].items()
    }


def report(name: str, rows: list[dict[str, tuple[list[int], float, float]]]) -> None:
    for way in rows[0]:
        rates = [(len(row[way][0]) - 1) / row[way][1] for row in rows]
        plain = [(len(row["plain"][0]) - 1) / row["plain"][1] for row in rows]
        ratios = [rate / base for rate, base in zip(rates, plain, strict=True)]
        lengths = [row[way][2] for row in rows]
        same = sum(row[way][0] == row["plain"][0] for row in rows)
        print(
            f"{name:10} {way:13} {median(rates):6.1f} tok/s  x{median(ratios):.2f} of plain "
            f"({min(ratios):.2f} to {max(ratios):.2f})  acceptance length {sum(lengths) / len(lengths):.2f}  "
            f"identical {same}/{len(rows)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
