"""Prints how many cycles the embedded engine needs for prompts given as JSON: a yardstick for other engines.

Run in the project's own environment, with prompts, tokens, tree_budget and the drafter's options as JSON:

    python tests/embedded_cycles.py DRAFT < asked.json
"""

import json
import sys

from dflash_backends.transformers.demo_model import smollm2_folder
from dflash_core.generation import generate
from dflash_core.loading import load_draft, load_target


def main() -> None:
    asked = json.load(sys.stdin)
    target = load_target(smollm2_folder(), fast="off", calibrate=False)
    draft = load_draft(sys.argv[1], target, fast="off", **asked["options"])
    result = generate(
        target,
        draft,
        asked["prompts"],
        max_new_tokens=asked["tokens"],
        verify_length="block",
        tree_budget=asked["tree_budget"],
        schedule="fixed",
    )
    cycles = [len(lengths) for lengths in result.stats.acceptance_lengths]
    json.dump({"tokens": result.tokens, "cycles": cycles}, sys.stdout)


if __name__ == "__main__":
    main()
