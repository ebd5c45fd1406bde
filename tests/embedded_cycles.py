"""Prints how many cycles the embedded engine needs for prompts given as JSON: a yardstick for other engines.

Run in the project's own environment: python tests/embedded_cycles.py DRAFT TOKENS TREE_BUDGET < prompts.json
"""

import json
import sys

from dflash_backends.transformers.demo_model import smollm2_folder
from dflash_core.generation import generate
from dflash_core.loading import load_draft, load_target


def main() -> None:
    draft_path, tokens, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    target = load_target(smollm2_folder(), fast="off", calibrate=False)
    draft = load_draft(draft_path, target, fast="off")
    result = generate(
        target,
        draft,
        json.load(sys.stdin),
        max_new_tokens=tokens,
        verify_length="block",
        tree_budget=budget or None,
        schedule="fixed",
    )
    cycles = [len(lengths) for lengths in result.stats.acceptance_lengths]
    json.dump({"tokens": result.tokens, "cycles": cycles}, sys.stdout)


if __name__ == "__main__":
    main()
