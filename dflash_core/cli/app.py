"""Mounts the commands and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, TextIO

import typer

from dflash_core.cli import output
from dflash_core.errors import DFlashError, PluginError
from dflash_core.plugins import catalogue, registry

FAILED = 2
"""Exit code of everything a user can mend, usage errors included."""
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `dflash-core` with these arguments (those of the process by default). Always raises SystemExit."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Closed streams, `>&-`: nobody wants to hear it.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    try:
        try:
            build(arguments)(arguments, prog_name="dflash-core")
        finally:
            sys.stdout.flush()
    except DFlashError as error:
        output.note(f"Error: {error}")
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt:
        _interrupted()
    except BrokenPipeError:
        _quiet(sys.stdout)
        raise SystemExit(1) from None
    except (OSError, UnicodeEncodeError) as error:
        # Files are the commands' own business and become DFlashErrors there. What is left is the output,
        # whose errors name no file.
        if getattr(error, "filename", None) is not None:
            raise
        _quiet(sys.stdout)
        output.note(f"Error: the output cannot be written: {error}.")
        raise SystemExit(FAILED) from None
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            _interrupted()
        raise


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application that can answer these arguments.

    When they begin with a command only that command is imported; for anything else, such as `--help`, all
    are, and those that cannot be are named at the end of the help.
    """
    commands = registry("commands")
    asked = arguments[0] if arguments else ""
    loaded: dict[str, object] = {}
    broken: list[str] = []
    for name in [asked] if asked in commands else commands:
        try:
            loaded[name] = commands[name]
        except PluginError as error:
            if name == asked:
                raise
            broken.append(str(error))
    broken += [str(failure) for failure in catalogue().failures]
    return _application(loaded, broken)


def _application(commands: dict[str, object], broken: Iterable[str]) -> typer.Typer:
    epilog = "\n\n".join(f"Not available: {reason}" for reason in broken)
    app = typer.Typer(
        name="dflash-core",
        epilog=epilog or None,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_options)
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)  # type: ignore[type-var]
    return app


def _version(asked: bool) -> None:
    if asked:
        from dflash_core.cli.version import own_version

        print(f"dflash-core {own_version()}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Lossless speculative decoding with DFlash drafts."""


def _quiet(stream: TextIO) -> None:
    """What is still buffered would fail again, loudly, when the interpreter closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _interrupted() -> None:
    output.note("Interrupted.")
    raise SystemExit(INTERRUPTED) from None
