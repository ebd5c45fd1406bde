"""What a prompt hides is reported, removed only on request, and honest text is left alone."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_core.hygiene import clean_text, inspect_text, report

HIDDEN = [
    ("\x00", "NULL", "control"),
    ("\x1b", "ESCAPE", "control"),
    ("\x7f", "DELETE", "control"),
    ("\x9b", "CONTROL 9B", "control"),
    ("\u202e", "RIGHT-TO-LEFT OVERRIDE", "direction"),
    ("\u2066", "LEFT-TO-RIGHT ISOLATE", "direction"),
    ("\u200f", "RIGHT-TO-LEFT MARK", "direction"),
    ("\u200b", "ZERO WIDTH SPACE", "invisible"),
    ("\u200d", "ZERO WIDTH JOINER", "invisible"),
    ("\ufeff", "ZERO WIDTH NO-BREAK SPACE", "invisible"),
    ("\U000e0041", "TAG LATIN CAPITAL LETTER A", "invisible"),
    ("\ud800", "LONE SURROGATE", "surrogate"),
    ("\udfff", "LONE SURROGATE", "surrogate"),
]


@pytest.mark.parametrize(
    ("character", "name", "category"), HIDDEN, ids=[f"U+{ord(one):04X}" for one, *_ in HIDDEN]
)
def test_a_hidden_character_is_reported_with_place_name_and_category(character, name, category):
    [finding] = inspect_text(f"ab{character}c")
    assert (finding.name, finding.category) == (name, category)
    assert (finding.position, finding.code) == (2, ord(character))
    assert clean_text(f"ab{character}c") == "abc"


@pytest.mark.parametrize(
    "text", ["", "two\r\n\tlines", "naïve façade", "数学", "שלום", "😀 e\u0301", "a\u00a0b"]
)
def test_honest_text_is_left_alone(text):
    assert inspect_text(text) == ()
    assert clean_text(text) == text
    assert report(inspect_text(text)) == ""


def test_every_control_and_every_turn_of_direction_is_known():
    controls = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"]
    turns = [
        chr(code)
        for code in range(0x110000)
        if unicodedata.bidirectional(chr(code))
        in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    ]
    assert len(inspect_text("".join(controls))) == len(controls)
    assert {finding.category for finding in inspect_text("".join(turns))} == {"direction"}
    assert len(inspect_text("".join(turns))) == len(turns) == 9


def test_the_report_is_one_printable_sentence_that_counts_and_points():
    text = "".join(character for character, *_ in HIDDEN)
    sentence = report(inspect_text(text))
    assert "4 control" in sentence
    assert "U+0000 NULL at 0" in sentence
    assert sentence.endswith(f"and {len(HIDDEN) - 3} more.")
    assert sentence.isprintable()


@given(
    st.text(st.characters(exclude_categories=()) | st.sampled_from([character for character, *_ in HIDDEN]))
)
def test_cleaning_removes_what_is_reported_and_nothing_else(text):
    places = {finding.position for finding in inspect_text(text)}
    assert clean_text(text) == "".join(one for at, one in enumerate(text) if at not in places)
    assert inspect_text(clean_text(text)) == ()
