"""`python -m dflash_core` is `dflash-core`."""

from dflash_core.cli import main

main()
