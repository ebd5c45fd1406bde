"""From prompts to token ids, through a chat template that may refuse them."""

from typing import Any, Protocol

from dflash_core.errors import DFlashError, RequestError
from dflash_core.training.data.answering import AnswerOptions
from dflash_core.training.data.prompts import Prompt

PATIENCE = 32
"""Prompts refused in a row, none accepted before, after which the template and not the prompt is at fault."""


class Encode(Protocol):
    """A conversation to token ids, as a target's or a tokenizer's `encode_chat`."""

    def __call__(self, messages: Any, **options: Any) -> list[int]: ...


class PromptEncoder:
    """Encodes prompts; those that the chat template refuses are `None`."""

    def __init__(self, encode: Encode, options: AnswerOptions) -> None:
        self._encode = encode
        self._template = options.template
        self._refused = 0
        self._accepted = False

    def __call__(self, prompt: Prompt) -> list[int] | None:
        """
        Raises:
            RequestError: the template refuses everything.
            DFlashError: there is no template.
        """
        try:
            ids = self._encode(prompt.chat(), **self._template)
        except DFlashError:
            raise
        except Exception as error:  # noqa: BLE001 a template is a program that may raise anything
            self._refused += 1
            if self._refused >= PATIENCE and not self._accepted:
                raise RequestError(f"The chat template refuses every prompt: {error}.") from None
            return None
        self._accepted = True
        return ids or None
