"""Characters of a prompt that a reader does not see: reported always, removed only on request.

Tabs, line feeds and carriage returns are text. Joiners have honest uses (emoji, Persian, Indic scripts), so a
finding is a fact about the prompt and no verdict on it.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Literal

Category = Literal["control", "direction", "invisible", "surrogate"]

_TEXT = frozenset("\t\n\r")
_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Marks, embeddings, overrides and isolates of bidirectional text: they can show it in another order."""
_INVISIBLE = frozenset("\u00ad\u034f\u180e\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\ufeff")
"""Characters without width."""


@dataclass(frozen=True)
class Finding:
    """One character: its index in the string, what it is, and its Unicode name."""

    position: int
    code: int
    name: str
    category: Category

    def __str__(self) -> str:
        return f"U+{self.code:04X} {self.name} at {self.position}"


def inspect_text(text: str) -> tuple[Finding, ...]:
    """Every character of `text` that is a control, turns its direction, has no width, or is half a pair."""
    found = ((at, character, _category(character)) for at, character in enumerate(text))
    return tuple(
        Finding(at, ord(character), _name(character), category)
        for at, character, category in found
        if category
    )


def clean_text(text: str) -> str:
    """`text` without the characters that `inspect_text` reports; everything else is untouched."""
    return "".join(character for character in text if _category(character) is None)


def report(findings: tuple[Finding, ...], shown: int = 3) -> str:
    """One sentence for people; empty when nothing was found."""
    if not findings:
        return ""
    counts = Counter(finding.category for finding in findings)
    kinds = ", ".join(f"{count} {category}" for category, count in counts.most_common())
    first = "; ".join(str(finding) for finding in findings[:shown])
    more = f"; and {len(findings) - shown} more" if len(findings) > shown else ""
    return f"The prompt has characters that do not show ({kinds}): {first}{more}."


def _category(character: str) -> Category | None:
    code = ord(character)
    if character in _TEXT:
        return None
    if code < 0x20 or 0x7F <= code <= 0x9F:
        return "control"
    if character in _DIRECTION:
        return "direction"
    if 0xD800 <= code <= 0xDFFF:
        return "surrogate"
    # The tag block spells ASCII invisibly.
    return "invisible" if character in _INVISIBLE or 0xE0000 <= code <= 0xE007F else None


def _name(character: str) -> str:
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "LONE SURROGATE"
    if code < 0x20 or code == 0x7F:
        # Control characters have no names of their own, but their pictures have.
        picture = unicodedata.name(chr(0x2421 if code == 0x7F else 0x2400 + code))
        return picture.removeprefix("SYMBOL FOR ")
    return unicodedata.name(character, f"CONTROL {code:02X}")
