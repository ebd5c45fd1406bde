"""Prompts of a command: given, read from standard input, or the demo's."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dflash_core.cli import output
from dflash_core.errors import SettingsError
from dflash_core.hygiene import clean_text, inspect_text, report


def read_prompts(given: Sequence[str] | None, demo: bool, clean: bool) -> list[str]:
    """The prompts, with a note on standard error about what is hidden in them.

    Args:
        given: from the command line; "-" stands for standard input.
        demo: whether the demo's prompts stand in for none.
        clean: remove control characters and the like; otherwise they are only reported.

    Raises:
        SettingsError: there is no prompt.
    """
    if not given:
        if not demo:
            raise SettingsError('There is no prompt. Give --prompt "...", or --prompt - to read one.')
        from dflash_core.demo import PROMPTS

        return list(PROMPTS)
    texts = [_standard_input() if text == "-" else text for text in given]
    return [_inspected(text, clean) for text in texts]


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise SettingsError(f"Standard input is no text in {error.encoding}: {error.reason}.") from None


def _inspected(text: str, clean: bool) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        # Bytes that are no text arrive as lone surrogates.
        raise SettingsError(f"The prompt is no text in UTF-8: {error.reason} at {error.start}.") from None
    findings = inspect_text(text)
    if findings:
        output.note(report(findings) + (" They were removed." if clean else " --clean removes them."))
    return clean_text(text) if clean else text
