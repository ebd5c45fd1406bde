"""The model card beside a draft's weights: Markdown for people, which goes where the draft goes."""

from __future__ import annotations

from pathlib import Path

from dflash_core.checkpoint.files import open_file, open_folder, read_exactly
from dflash_core.errors import CheckpointError

CARD = "README.md"
LIMIT = 16 << 20
"""Bytes of a card; real ones have some thousands."""


def read_card(path: Path | None) -> str | None:
    """The card in a checkpoint's folder, byte for byte; `None` where there is no folder, or no card in it.

    Raises:
        CheckpointError: it is no file of the folder, is far too large, or cannot be read.
    """
    if path is None or not (path / CARD).exists():
        return None
    folder = open_folder(path)
    where = folder.where(CARD)
    with open_file(folder, CARD) as (stream, size):
        if size > LIMIT:
            raise CheckpointError(f"{where} has {size} bytes; at most {LIMIT} are copied. Move it away.")
        return read_exactly(stream, size, where).decode(errors="surrogateescape")


def write_card(card: str, folder: Path) -> None:
    """What `read_card` reads; raises OSError."""
    (folder / CARD).write_bytes(card.encode(errors="surrogateescape"))


def with_section(card: str, title: str, text: str) -> str:
    """A card that ends with this section, instead of one of the same title."""
    before = without_section(card, title).rstrip()
    return f"{before}\n\n## {title}\n\n{text}\n".lstrip()


def without_section(card: str, title: str) -> str:
    """A card without the section of this title, which goes to the next heading of its rank."""
    lines = card.splitlines(keepends=True)
    heads = [index for index, line in enumerate(lines) if line.startswith(("# ", "## "))]
    start = next((index for index in heads if lines[index].strip() == f"## {title}"), len(lines))
    stop = next((index for index in heads if index > start), len(lines))
    return "".join(lines[:start] + lines[stop:])
