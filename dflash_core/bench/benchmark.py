"""A whole benchmark: load the systems, run them, and say what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from dflash_core.bench.against import Agreement, compare_runs
from dflash_core.bench.claims import Check, check_claims
from dflash_core.bench.environment import changes, describe_environment
from dflash_core.bench.figures import ALL, Figures
from dflash_core.bench.options import BenchOptions
from dflash_core.bench.plan import Plan, turns
from dflash_core.bench.run import OnTurn, carry_out
from dflash_core.bench.runfile import RunFile, results_of
from dflash_core.bench.summary import Measured, summarise
from dflash_core.bench.systems.base import System
from dflash_core.bench.workbench import Workbench
from dflash_core.plugins import provider

BUSY = 0.5
"""Load a core, as the system counts it, above which others are likely to be in the way."""

CHECKED = ("system", "level", "value", "holds", "reason")


@dataclass(frozen=True)
class Outcome:
    """What was measured, and where.

    Attributes:
        rows: by level, system and set.
        systems: what each says about itself, by label.
        environment: of the first sitting.
        resumed: those of later ones, where the run was interrupted.
        options: what was asked, as JSON.
        agreements: with the figures of an earlier run, where one was given.
    """

    rows: Sequence[Figures]
    systems: Mapping[str, Mapping[str, Any]]
    baseline: str | None
    environment: Mapping[str, Any]
    options: Mapping[str, Any]
    checks: Sequence[Check] = ()
    agreements: Sequence[Agreement] = ()
    resumed: Sequence[Mapping[str, Any]] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `None` is what was not reported."""
        return {
            "environment": dict(self.environment),
            "resumed": [dict(environment) for environment in self.resumed],
            "options": dict(self.options),
            "systems": {label: dict(about) for label, about in self.systems.items()},
            "baseline": self.baseline,
            "figures": [row.to_dict() for row in self.rows],
            "claims": [
                {"text": check.claim.text, **{name: getattr(check, name) for name in CHECKED}}
                for check in self.checks
            ],
            "against": [asdict(agreement) for agreement in self.agreements],
        }


class Benchmark:
    """Loads what the options name, once, and carries the plan out."""

    def __init__(
        self,
        options: BenchOptions,
        note: Callable[[str], None] = lambda message: None,
        workbench: Workbench | None = None,
    ) -> None:
        """
        Args:
            note: told what is being loaded.
            workbench: holds targets and drafts; one of its own by default.

        Raises:
            DFlashError: a system cannot be loaded or reached.
        """
        self._options = options
        self._note = note
        self._environment = describe_environment()
        busy, cores = self._environment["load_before"] or 0.0, self._environment["cores"] or 1
        if busy > BUSY * cores:
            note(f"This machine is busy (load {busy} on {cores} cores); its figures will be noisy.")
        bench = workbench or Workbench(options.flags, options.config, note=note)
        self._systems: dict[str, System] = {
            spec.label: cast(System, provider("systems", spec.kind)(bench, spec.options))
            for spec in options.systems
        }
        self._plan = Plan(
            asks=options.asks,
            labels=tuple(self._systems),
            levels=options.levels,
            max_new_tokens=options.settings.max_new_tokens,
            seed=options.settings.seed,
            repeats=options.repeats,
            round_size=options.round_size,
        )
        self._keys = [turn.key for turn in turns(self._plan)]

    @property
    def turns(self) -> int:
        """How many there are."""
        return len(self._keys)

    def open_run(self, path: Path, resume: bool) -> RunFile:
        """The file in which finished turns are kept; that it was begun elsewhere is noted.

        Raises:
            DFlashError: it cannot be used, see `RunFile`.
        """
        abouts = [system.about for system in self._systems.values()]
        header = {"fingerprint": self._plan.fingerprint(abouts), "environment": self._environment}
        keep = RunFile(path, header, resume)
        other = changes(keep.sittings[-1], self._environment)
        if other and len(keep.done) < self.turns:
            self._note(f"Not all of this run will be of one place: {'; '.join(other)}.")
        return keep

    def run(self, keep: RunFile, on_turn: OnTurn = lambda turn, result: None) -> None:
        """Run the turns that are missing.

        Raises:
            DFlashError: a system can answer nothing at all, or a turn cannot be kept.
        """
        carry_out(self._plan, self._systems, keep, warm_up=self._options.warm_up, on_turn=on_turn)

    def outcome(self, keep: RunFile) -> Outcome:
        """Figures of the turns that there are."""
        options = self._options
        first, *resumed = keep.sittings
        rows = summarise(
            Measured(
                results_of(keep.done, self._keys),
                {ask.id: ask.group for ask in options.asks},
                options.baseline,
                options.targets,
                options.price,
                options.settings.seed,
            )
        )
        return Outcome(
            rows,
            {label: system.about for label, system in self._systems.items()},
            options.baseline,
            first,
            described(options),
            check_claims(options.claims, rows, options.baseline),
            compare_runs(options.earlier, rows),
            resumed,
        )


def failures(outcome: Outcome) -> list[Check]:
    """Checks that do not hold."""
    return [check for check in outcome.checks if not check.holds]


def with_errors(outcome: Outcome) -> list[Figures]:
    """The rows over all sets of which requests failed."""
    return [row for row in outcome.rows if row.group == ALL and row.errors]


def described(options: BenchOptions) -> dict[str, Any]:
    """What was asked, as JSON."""
    groups = [ask.group for ask in options.asks]
    return {
        "requests": {group: groups.count(group) for group in sorted(set(groups))},
        "levels": [level.label for level in options.levels],
        "repeats": options.repeats,
        "warm_up": options.warm_up,
        "round": options.round_size,
        "latency_targets": [asdict(target) for target in options.targets],
        "price_per_hour": options.price,
        "max_new_tokens": options.settings.max_new_tokens,
        "temperature": options.settings.temperature,
        "seed": options.settings.seed,
    }
