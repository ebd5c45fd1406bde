"""The command line starts fast, and says what went wrong in one line with the right exit code."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dflash_core.cli import app, main, output
from dflash_core.errors import CheckpointError, PluginError

DFLASH = [sys.executable, "-m", "dflash_core"]


def run(*arguments, **options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DFLASH_")}
    return subprocess.run(
        [*DFLASH, *arguments], capture_output=True, text=True, check=False, env=environment, **options
    )


def exit_code(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code or 0


@pytest.fixture
def commands(monkeypatch):
    """An empty set of commands to fill, in place of those of the plugins."""
    table = {}
    monkeypatch.setattr(app, "registry", lambda kind: table)
    return table


LOADED = """
import sys
from dflash_core.cli import main
try:
    main({})
except SystemExit as stop:
    print(stop.code or 0, "torch" in sys.modules)
"""


HEAVY = ("generate", "inspect", "convert", "validate", "export", "confidence", "data")
LIGHT = [
    ["--help"],
    *([name, "--help"] for name in HEAVY),
    ["version"],
    ["plugins"],
    ["settings"],
    ["--version"],
]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_help_and_the_light_commands_do_not_import_torch(arguments):
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(arguments)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 False"


def test_help_answers_at_once():
    def spent():
        """Processor seconds of finished children, which do not depend on who else is busy."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    assert run("--help").returncode == 0
    assert spent() - before < 1.0


def test_help_lists_every_command_of_ours():
    text = run("--help").stdout
    for name in (*HEAVY, "settings", "plugins", "version"):
        assert f" {name} " in text
    assert "Not available" not in text


def test_a_known_error_is_one_sentence_and_exit_code_2(commands, capsys):
    def broken():
        raise CheckpointError("draft/config.json: block_size is 0; it must be at least 2.")

    commands["broken"] = broken
    assert exit_code("broken") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "Error: draft/config.json: block_size is 0; it must be at least 2.\n"


def test_a_long_error_stays_on_one_line_and_keeps_its_brackets(commands, capsys):
    message = "taps are [1, 9, 17] " + "word " * 100 + "[bold]end[/bold]"

    def broken():
        raise CheckpointError(message)

    commands["broken"] = broken
    exit_code("broken")
    assert capsys.readouterr().err == f"Error: {message}\n"


def test_a_bug_of_ours_is_not_hidden(commands):
    def buggy():
        raise KeyError("a bug")

    commands["buggy"] = buggy
    with pytest.raises(KeyError, match="a bug"):
        main(["buggy"])


def test_an_interrupt_is_one_line_and_exit_code_130(commands, capsys):
    def slow():
        raise KeyboardInterrupt

    commands["slow"] = slow
    assert exit_code("slow") == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_a_command_chooses_its_own_exit_code(commands):
    def picky():
        raise typer.Exit(1)

    commands["picky"] = picky
    assert exit_code("picky") == 1


def test_a_group_of_commands_is_mounted_as_one(commands, capsys):
    group = typer.Typer()
    group.command("one")(lambda: print("first"))
    group.command("two")(lambda: print("second"))
    commands["group"] = group
    assert exit_code("group", "two") == 0
    assert capsys.readouterr().out == "second\n"


class OneBroken(dict):
    def __getitem__(self, name):
        if name == "broken":
            raise PluginError("command 'broken' of plugin 'x' (x 1.0) cannot be imported: ImportError: no")
        return super().__getitem__(name)


def test_a_command_that_cannot_be_imported_is_named_in_the_help_and_the_others_work(monkeypatch, capsys):
    monkeypatch.setattr(app, "registry", lambda kind: OneBroken(fine=lambda: print("fine"), broken=None))
    assert exit_code("--help") == 0
    assert "Not available: command 'broken' of plugin 'x'" in capsys.readouterr().out
    assert exit_code("fine") == 0
    assert exit_code("broken") == 2
    assert "ImportError: no" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error_that_guesses():
    done = run("plugns")
    assert done.returncode == 2
    assert "plugins" in done.stderr


def test_nothing_at_all_shows_the_help():
    done = run()
    assert "Usage" in done.stdout + done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("command", ["plugins", "version"])
def test_a_reader_that_has_gone_away_is_no_error(command, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [*DFLASH, command], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=environment
    )
    os.close(writer)
    assert done.stderr == ""


@pytest.mark.parametrize(("redirection", "code"), [(">/dev/full", 2), (">&-", 0), ("2>&-", 0)])
def test_output_that_cannot_be_written_is_one_sentence(redirection, code):
    command = f"{sys.executable} -m dflash_core version {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert ("cannot be written" in done.stderr) == (code == 2)


def test_the_version_is_that_of_the_distribution():
    version = run("version", "--json")
    found = json.loads(version.stdout)
    assert run("--version").stdout == f"dflash-core {found['dflash-core']}\n"
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "transformers", "platform"} <= found.keys()
    assert run("version").stdout.startswith(f"dflash-core  {found['dflash-core']}\n")


def test_settings_are_listed_with_their_origins(tmp_path):
    (tmp_path / "dflash.toml").write_text("seed = 7\n")
    listed = json.loads(run("settings", "--json", cwd=tmp_path).stdout)
    assert listed["seed"] == {"value": 7, "from": "dflash.toml"}
    assert listed["top_k"] == {"value": 0, "from": "default"}
    table = run("settings", cwd=tmp_path).stdout
    assert "dflash.toml" in table
    assert "verification_batch_size" in table


def test_settings_tell_what_the_draft_checkpoint_says():
    draft = next((Path(__file__).parents[2] / "drafts").glob("*/config.json")).parent
    listed = json.loads(run("settings", "--draft", str(draft), "--json").stdout)
    assert listed["block_size"] == {"value": 8, "from": "checkpoint"}


def test_a_wrong_setting_is_one_sentence(tmp_path):
    (tmp_path / "dflash.toml").write_text("sed = 7\n")
    done = run("settings", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "Error: dflash.toml: sed is not a setting. Did you mean seed?\n"


def test_plugins_check_imports_everything_and_finds_nothing_wrong_with_ours():
    failures = json.loads(run("plugins", "--check", "--json").stdout)["failures"]
    assert [one for one in failures if one["source"]["distribution"] == "dflash-core"] == []


def test_json_has_no_word_for_nan_so_it_is_an_error(capsys):
    with pytest.raises(ValueError, match="JSON"):
        output.print_json({"x": float("nan")})
    output.print_json({"x": "naïve"})
    assert capsys.readouterr().out == '{\n  "x": "naïve"\n}\n'


def test_a_table_shows_values_as_they_are(capsys):
    output.print_table(("name", "value"), [("[red]", 1.23456), (None, True), ("x", 7)])
    text = capsys.readouterr().out
    assert "[red]" in text
    assert "1.235" in text
    assert "yes" in text
    assert "│ -" in text
