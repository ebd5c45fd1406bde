"""The `dflash-core` command. One module a command; ours are mounted through the plugin hook like anyone's.

Nothing here or in a command's module imports torch at its top: `dflash-core --help` must answer at once.
"""

from dflash_core.cli.app import main

__all__ = ["main"]
