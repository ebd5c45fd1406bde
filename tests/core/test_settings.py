"""Settings come from where the order says, say where they came from, and refuse what cannot be meant."""

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_core.errors import SettingsError
from dflash_core.settings import Settings, resolve
from dflash_core.settings.model import ALIASES, LATER

NAMES = list(Settings.model_fields)


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """A working directory without dflash.toml, an environment without our variables."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("DFLASH_")]:
        monkeypatch.delenv(variable)


def value(name, **sources):
    return getattr(resolve(**{"environ": {}, **sources}).settings, name)


def test_defaults_hold_when_nothing_is_said():
    resolved = resolve(environ={})
    assert resolved.settings == Settings()
    assert set(resolved.origins.values()) == {"default"}
    assert list(resolved.origins) == NAMES


def test_each_source_beats_the_one_before_it_and_is_named():
    def block_size(**sources):
        resolved = resolve(**{"environ": {}, **sources})
        return resolved.settings.block_size, resolved.origins["block_size"]

    checkpoint, environ, flags = {"block_size": 2}, {"DFLASH_BLOCK_SIZE": "4"}, {"block_size": 5}
    assert block_size() == (None, "default")
    assert block_size(checkpoint=checkpoint) == (2, "checkpoint")
    Path("dflash.toml").write_text("block_size = 3\n")
    assert block_size(checkpoint=checkpoint) == (3, "dflash.toml")
    assert block_size(checkpoint=checkpoint, environ=environ) == (4, "DFLASH_BLOCK_SIZE")
    assert block_size(checkpoint=checkpoint, environ=environ, flags=flags) == (5, "--block-size")


def test_a_flag_that_was_not_given_changes_nothing():
    assert value("seed", environ={"DFLASH_SEED": "3"}, flags={"seed": None}) == 3


def test_a_named_file_is_read_in_place_of_the_one_here(tmp_path):
    Path("dflash.toml").write_text("seed = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("top_k = 5\n")
    resolved = resolve(environ={}, config=other)
    assert (resolved.settings.seed, resolved.settings.top_k) == (0, 5)
    assert resolved.origins["top_k"] == str(other)


def test_a_variable_can_name_the_file(tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("top_k = 5\n")
    resolved = resolve(environ={"DFLASH_CONFIG": str(other)})
    assert (resolved.settings.top_k, resolved.origins["top_k"]) == (5, str(other))
    with pytest.raises(SettingsError, match="missing"):
        resolve(environ={"DFLASH_CONFIG": "missing.toml"})


def test_the_variables_that_scripts_depend_on():
    environ = {
        "DFLASH_BLOCK_DIFFUSION": "false",
        "DFLASH_DRAFT_BLOCK_SIZE": "4",
        "DFLASH_VERIFICATION_BATCH_SIZE": "2",
        "DFLASH_CACHE_DIR": "somewhere",
    }
    settings = resolve(environ=environ).settings
    assert settings.block_diffusion is False
    assert (settings.block_size, settings.verification_batch_size) == (4, 2)
    assert settings.cache_dir == Path("somewhere")


@pytest.mark.parametrize(
    ("text", "meant"), [("auto", "auto"), ("block", "block"), ("4", 4)], ids=["auto", "block", "number"]
)
def test_a_verify_length_is_a_word_or_a_number(text, meant):
    assert value("verify_length", environ={"DFLASH_VERIFY_LENGTH": text}) == meant


def test_none_takes_back_what_a_lower_source_set():
    Path("dflash.toml").write_text("tree_budget = 16\n")
    assert value("tree_budget") == 16
    assert value("tree_budget", environ={"DFLASH_TREE_BUDGET": "none"}) is None
    assert value("tree_budget", flags={"tree_budget": "none"}) is None


WRONG = {
    "type": ("block_size", "eight", "a whole number from 1"),
    "range": ("block_size", "0", "a whole number from 1"),
    "fraction": ("top_k", "1.5", "a whole number from 0"),
    "nan": ("temperature", "nan", "a number from 0"),
    "infinite": ("temperature", "inf", "a number from 0"),
    "negative": ("temperature", "-1", "a number from 0"),
    "share": ("top_p", "0", "a number above 0, at most 1"),
    "word": ("verify_length", "blck", "auto, block or a whole number from 1"),
    "choice": ("dtype", "int8", "float32, bfloat16 or float16"),
    "boolean": ("block_diffusion", "perhaps", "true or false"),
    "empty": ("target", "", "a path"),
    "huge": ("seed", str(2**63), "a whole number from 0 to 2**63 - 1"),
}


@pytest.mark.parametrize(("name", "text", "allowed"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_answered_with_its_place_and_what_is_allowed(name, text, allowed):
    variable = f"DFLASH_{name.upper()}"
    with pytest.raises(SettingsError) as caught:
        resolve(environ={variable: text})
    assert str(caught.value).startswith(f"{variable} is {text!r}; it must be {allowed}")
    Path("dflash.toml").write_text(f"{name} = {json.dumps(text)}\n")
    with pytest.raises(SettingsError, match=f"^dflash.toml: {name} is "):
        resolve(environ={})


@pytest.mark.parametrize("wrong", ["true", "'8'", "8.0", "[8]", "{a = 8}"])
def test_a_file_has_types_and_they_are_not_bent(wrong):
    Path("dflash.toml").write_text(f"block_size = {wrong}\n")
    with pytest.raises(SettingsError, match=r"dflash\.toml: block_size is .*; it must be a whole number"):
        resolve(environ={})


def test_an_unknown_key_is_answered_with_the_nearest_known_one():
    Path("dflash.toml").write_text("blok_size = 4\n")
    with pytest.raises(
        SettingsError, match=r"dflash\.toml: blok_size is not a setting\. Did you mean block_size\?"
    ):
        resolve(environ={})


def test_an_unknown_variable_is_answered_with_the_nearest_known_one():
    with pytest.raises(
        SettingsError, match=r"DFLASH_DRAFT_BLOK_SIZE is not.* mean DFLASH_DRAFT_BLOCK_SIZE\?"
    ):
        resolve(environ={"DFLASH_DRAFT_BLOK_SIZE": "4"})
    with pytest.raises(SettingsError, match="DFLASH_XYZZY is not a setting; `dflash-core settings` lists"):
        resolve(environ={"DFLASH_XYZZY": "4"})


def test_variables_of_others_are_left_alone():
    assert (
        resolve(environ={"DFLASHY": "1", "dflash_seed": "x", "DFLASH_PYTHON": "python3"}).settings
        == Settings()
    )


@pytest.mark.parametrize("name", LATER)
def test_what_only_a_later_version_can_honour_is_refused_with_the_reason(name):
    with pytest.raises(SettingsError, match=f"DFLASH_{name.upper()} needs a gate on the confidence"):
        resolve(environ={f"DFLASH_{name.upper()}": "0.85"})
    Path("dflash.toml").write_text(f"{name} = 0.85\n")
    with pytest.raises(SettingsError, match=f"dflash.toml: {name} needs a gate on the confidence"):
        resolve(environ={})


def test_two_variables_of_one_setting_must_agree():
    both = {"DFLASH_BLOCK_SIZE": "4", "DFLASH_DRAFT_BLOCK_SIZE": "4"}
    assert value("block_size", environ=both) == 4
    with pytest.raises(SettingsError, match="DFLASH_BLOCK_SIZE is '8' but DFLASH_DRAFT_BLOCK_SIZE is '4'"):
        resolve(environ={**both, "DFLASH_BLOCK_SIZE": "8"})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"block_size": 4, "verify_length": 5}, "verify_length is 5 (--verify-length) but block_size is 4"),
        (
            {"verifier": "greedy", "temperature": 0.5},
            "verifier is greedy (--verifier) but temperature is 0.5",
        ),
        ({"tree_budget": 16, "block_size": 1}, "tree_budget is 16 (--tree-budget) but block_size is 1"),
    ],
)
def test_a_contradiction_names_both_sides_and_their_places(flags, words):
    with pytest.raises(SettingsError) as caught:
        resolve(flags, environ={})
    assert words in str(caught.value)


def test_a_contradiction_is_found_across_sources():
    with pytest.raises(SettingsError, match=r"DFLASH_VERIFY_LENGTH\) but block_size is 8 \(checkpoint\)"):
        resolve(environ={"DFLASH_VERIFY_LENGTH": "9"}, checkpoint={"block_size": 8})


def test_a_missing_piece_is_answered_with_the_three_ways_to_give_it():
    with pytest.raises(SettingsError, match=r"--draft.*DFLASH_DRAFT.*dflash\.toml"):
        resolve(environ={}).require("draft")
    assert resolve({"draft": "d"}, environ={}).require("draft") == "d"


@pytest.mark.parametrize("content", [b"seed = ", b"\xff\xfe", b"seed = 1\nseed = 2"])
def test_a_file_that_is_not_toml_is_named(content):
    Path("dflash.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=r"dflash\.toml is not valid TOML"):
        resolve(environ={})


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(SettingsError, match=r"missing.toml cannot be read: No such file"):
        resolve(environ={}, config=Path("missing.toml"))
    with pytest.raises(SettingsError, match="cannot be read"):
        resolve(environ={}, config=Path())


def test_settings_cannot_be_changed_and_take_nothing_else():
    with pytest.raises(ValueError, match="frozen"):
        Settings().seed = 1
    with pytest.raises(ValueError, match="Extra inputs"):
        Settings(sed=1)


@pytest.mark.parametrize("variable", ALIASES)
def test_a_second_name_leads_to_a_setting_and_hides_none(variable):
    assert ALIASES[variable] in NAMES
    assert variable.removeprefix("DFLASH_").lower() not in NAMES


@given(
    st.dictionaries(
        st.sampled_from(NAMES) | st.text("abcdefgh_", max_size=12),
        st.text(st.characters(exclude_characters="\x00"), max_size=20),
        max_size=4,
    )
)
def test_no_environment_causes_anything_but_settings_or_a_settings_error(values):
    environ = {f"DFLASH_{name.upper()}": text for name, text in values.items()}
    with contextlib.suppress(SettingsError):
        assert set(resolve(environ=environ).origins.values()) <= {"default", *environ}
