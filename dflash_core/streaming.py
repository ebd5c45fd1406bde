"""Text of a growing list of tokens, piece by piece."""

from collections.abc import Sequence

from dflash_core.request import Detokenize, cut_at_stop

WINDOW = 64
"""Tokens decoded again with each piece; older ones cannot change what newer ones spell."""

UNFINISHED = "\ufffd"
"""What a tokenizer prints for the first bytes of a character whose last bytes are in the next token."""


class TextStream:
    """Turns committed tokens into text that never has to be taken back.

    Held back are bytes of an unfinished character, and what may be the beginning of a stop string.
    """

    def __init__(self, detokenize: Detokenize, stops: Sequence[str | tuple[int, ...]] = ()) -> None:
        self._detokenize = detokenize
        self._stops = [stop for stop in stops if isinstance(stop, str)]
        self._tokens: list[int] = []
        self._start = 0
        self._shown = ""
        self._held = ""

    def feed(self, tokens: Sequence[int], last: bool = False) -> str:
        """New text. With `last` nothing is held back any more, and a stop string is cut off.

        Args:
            tokens: committed since the last call.
            last: the request is finished.
        """
        self._tokens += tokens
        window = self._detokenize(self._tokens[self._start :])
        if window.endswith(UNFINISHED) and not last:
            return ""
        fresh = self._held + window[len(self._shown) :]
        if len(self._tokens) - self._start > WINDOW:
            self._start = len(self._tokens) - WINDOW // 2
            window = self._detokenize(self._tokens[self._start :])
        self._shown = window
        if last:
            return cut_at_stop(fresh, self._stops)
        keep = max((_overlap(fresh, stop) for stop in self._stops), default=0)
        self._held = fresh[len(fresh) - keep :]
        return fresh[: len(fresh) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop)), 0, -1) if text.endswith(stop[:n])), 0)
