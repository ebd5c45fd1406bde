"""What this package registers itself, through the same hooks as anyone else.

Providers are named, not imported, so that listing them costs nothing.
"""

from dflash_core.hookspecs import Providers, hookimpl


@hookimpl
def dflash_dialects() -> Providers:
    return {name: f"dflash_core.checkpoint.{name}:DIALECT" for name in ("zlab", "speculators", "specforge")}


@hookimpl
def dflash_drafters() -> Providers:
    return {"block": "dflash_core.drafter.block:BlockDrafter"}


@hookimpl
def dflash_verifiers() -> Providers:
    return {
        "greedy": "dflash_core.verify.greedy:GreedyVerifier",
        "sampling": "dflash_core.verify.sampling:SamplingVerifier",
    }


@hookimpl
def dflash_rollbacks() -> Providers:
    return {
        "crop": "dflash_core.rollback.crop:CropRollback",
        "gather": "dflash_core.rollback.gather:GatherRollback",
        "replay": "dflash_core.rollback.replay:ReplayRollback",
        "checkpoint": "dflash_core.rollback.checkpoint:CheckpointRollback",
    }


@hookimpl
def dflash_schedules() -> Providers:
    return {
        "fixed": "dflash_core.schedule.fixed:FixedSchedule",
        "auto": "dflash_core.schedule.auto:AutoSchedule",
    }


@hookimpl
def dflash_systems() -> Providers:
    return {
        "plain": "dflash_core.bench.systems.embedded:plain",
        "dflash": "dflash_core.bench.systems.embedded:drafted",
        "endpoint": "dflash_core.bench.systems.endpoint:endpoint",
    }


@hookimpl
def dflash_commands() -> Providers:
    names = (
        "generate",
        "bench",
        "inspect",
        "convert",
        "validate",
        "export",
        "confidence",
        "data",
        "train",
        "settings",
        "plugins",
        "version",
    )
    return {name: f"dflash_core.cli.{name}:{name}_command" for name in names}
