"""Everything that a benchmark is told, read and checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_core.bench.against import Earlier, read_earlier
from dflash_core.bench.claims import Claim, check_names, parse_claim
from dflash_core.bench.level import Level
from dflash_core.bench.prompts import SETS
from dflash_core.bench.requests import Ask, gather
from dflash_core.bench.systems.spec import SystemSpec, parse_systems
from dflash_core.bench.targets import LatencyTarget, parse_targets
from dflash_core.errors import SettingsError
from dflash_core.plugins import registry
from dflash_core.settings import Settings, resolve

NAMELESS_BASELINES = ("plain",)
"""Kinds of system that are the baseline without being named."""


@dataclass(frozen=True)
class BenchOptions:
    """See `dflash-core bench --help`."""

    flags: Mapping[str, Any]
    config: Path | None
    settings: Settings
    systems: tuple[SystemSpec, ...]
    asks: tuple[Ask, ...]
    levels: tuple[Level, ...]
    repeats: int
    targets: tuple[LatencyTarget, ...]
    baseline: str | None
    warm_up: int
    round_size: int | None
    price: float | None
    claims: tuple[Claim, ...]
    earlier: Earlier = field(default_factory=dict)

    @staticmethod
    def parse(
        *,
        flags: Mapping[str, Any],
        config: Path | None = None,
        systems: Sequence[str],
        sets: Sequence[str] = (),
        files: Sequence[Path] = (),
        prompts: int | None = None,
        repeats: int = 1,
        concurrency: Sequence[int] = (),
        rates: Sequence[float] = (),
        targets: Sequence[str] = (),
        baseline: str | None = None,
        warm_up: int = 1,
        round_size: int | None = None,
        price: float | None = None,
        claims: Sequence[str] = (),
        against: Path | None = None,
    ) -> BenchOptions:
        """Read what the command line gives; without sets and files it is all built-in sets, one at a time.

        Raises:
            SettingsError: anything of it makes no sense.
        """
        specs = parse_systems(systems)
        for spec in specs:
            if spec.kind not in registry("systems"):
                registry("systems").require(spec.kind)
        labels = [spec.label for spec in specs]
        if baseline is not None and baseline not in labels:
            raise SettingsError(f"--baseline is {baseline!r}, but the systems are {', '.join(labels)}.")
        settings = resolve(flags, config=config).settings
        asks = gather(sets if sets or files else list(SETS), files, prompts, settings.seed)
        levels = [Level(concurrency=count) for count in dict.fromkeys(concurrency)]
        levels += [Level(rate=rate) for rate in dict.fromkeys(rates)]
        levels = levels or [Level(concurrency=1)]
        read = [parse_claim(text) for text in claims]
        check_names(read, labels, sorted({ask.group for ask in asks}), [level.label for level in levels])
        named = next((spec.label for spec in specs if spec.kind in NAMELESS_BASELINES), None)
        return BenchOptions(
            flags=flags,
            config=config,
            settings=settings,
            systems=tuple(specs),
            asks=tuple(asks),
            levels=tuple(levels),
            repeats=repeats,
            targets=parse_targets(targets),
            baseline=baseline or named,
            warm_up=warm_up,
            round_size=round_size,
            price=price,
            claims=tuple(read),
            earlier={} if against is None else read_earlier(against),
        )
