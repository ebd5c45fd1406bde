"""What turns words into a target's tokens, without the target's weights."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class ChatTokenizer(Protocol):
    """A target's tokenizer and chat template."""

    @property
    def name(self) -> str:
        """Path or id, for messages."""
        ...

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends an answer; `None` when the tokenizer knows none."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation put through the chat template, up to where the answer begins.

        Raises:
            RequestError: there is no chat template.
        """
        ...

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of a text as it stands, nothing added before or after it."""
        ...
