"""Streamed text is the whole text, whatever the pieces; nothing shown has to be taken back."""

import random

import pytest

from dflash_core.streaming import TextStream

BYTES = "Ünïcödé, 漢字 and 🙂🙃: stop here or STOP there. ".encode() * 8


def detokenize(tokens):
    """A byte-level tokenizer: unfinished characters come out as U+FFFD, as real ones do."""
    return bytes(tokens).decode("utf-8", errors="replace")


def pieces(tokens, seed):
    rng = random.Random(seed)
    at = 0
    while at < len(tokens):
        step = rng.randint(1, 9)
        yield tokens[at : at + step], at + step >= len(tokens)
        at += step


@pytest.mark.parametrize("seed", range(5))
def test_pieces_add_up_to_the_text(seed):
    stream = TextStream(detokenize)
    text = "".join(stream.feed(part, last) for part, last in pieces(list(BYTES), seed))
    assert text == BYTES.decode()
    assert "\ufffd" not in text


@pytest.mark.parametrize("seed", range(5))
def test_a_stop_string_never_shows(seed):
    stream = TextStream(detokenize, ["STOP"])
    end = BYTES.index(b"STOP") + 4
    text = "".join(stream.feed(part, last) for part, last in pieces(list(BYTES[:end]), seed))
    assert text == BYTES[: end - 4].decode()


def test_what_only_looked_like_a_stop_is_shown_in_the_end():
    stream = TextStream(detokenize, ["STOPPED"])
    assert stream.feed(list(b"do not STOP")) == "do not "
    assert stream.feed(list(b" now"), last=True) == "STOP now"


def test_an_answer_that_ends_within_a_character_shows_that_it_does():
    stream = TextStream(detokenize)
    assert stream.feed(list("é".encode())[:1], last=True) == "\ufffd"
