"""Our settings as `--dflash-...` flags of SGLang's command line."""

import argparse
import os
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from dflash_core.settings import Settings

SETTINGS = (
    *("drafter", "proposal", "draft_vocab", "schedule", "verify_length", "tree_budget", "verifier"),
    *("fast", "cache_dir"),
)
"""Settings with a flag of their own. The others have one of SGLang's, or are a request's."""

ARGUMENTS = "sglang.srt.server_args.ServerArgs"


def register_flags() -> None:
    """Have SGLang's command line take them."""
    HookRegistry.register(f"{ARGUMENTS}.add_cli_args", add_flags, HookType.AFTER)
    HookRegistry.register(f"{ARGUMENTS}.from_cli_args", take_flags, HookType.BEFORE)


def add_flags(result: Any, parser: argparse.ArgumentParser) -> None:
    """After SGLang has added its own."""
    group = parser.add_argument_group("dflash-core (with --speculative-algorithm DFLASH_CORE)")
    group.add_argument(
        "--dflash-config", metavar="FILE", help="TOML file of settings, instead of dflash.toml"
    )
    for name in SETTINGS:
        field = Settings.model_fields[name]
        extra = field.json_schema_extra
        allowed = extra["allowed"] if isinstance(extra, dict) else ""
        group.add_argument(
            flag_of(name), metavar=name.rsplit("_", 1)[-1].upper(), help=f"{field.description}: {allowed}"
        )


def take_flags(cls: Any, args: argparse.Namespace) -> None:
    """Before SGLang reads its own: pass ours on to all its processes, as the variables they also are."""
    for name in ("config", *SETTINGS):
        value = getattr(args, f"dflash_{name}", None)
        if value is not None:
            os.environ[f"DFLASH_{name.upper()}"] = value


def flag_of(name: str) -> str:
    """`--dflash-tree-budget` of `tree_budget`."""
    return "--dflash-" + name.replace("_", "-")
