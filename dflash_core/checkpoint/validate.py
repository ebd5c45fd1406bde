"""What is wrong with a checkpoint, alone and with its target."""

from __future__ import annotations

import os

from dflash_core.checkpoint.confidence import head_doubts
from dflash_core.checkpoint.inspect import doubts
from dflash_core.checkpoint.load import Dialects, read_surveyed, survey_checkpoint
from dflash_core.checkpoint.pair import Finding, TargetFacts, pair_findings
from dflash_core.checkpoint.targets import read_target
from dflash_core.errors import DFlashError


def validate_checkpoint(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str] | TargetFacts | None = None,
    dialects: Dialects | None = None,
) -> list[Finding]:
    """Read a checkpoint to its last byte and hold it against a target; errors come first.

    Args:
        target: folder of the target, or facts about a loaded one such as a `TargetInfo`.

    Returns:
        Nothing when all is well. What a file says wrongly is a finding, not an exception.
    """
    where = str(path)
    try:
        survey = survey_checkpoint(path, dialects)
        checkpoint = read_surveyed(survey)
    except DFlashError as error:
        return [Finding("error", where, str(error))]
    doubted = [*doubts(survey), *head_doubts(checkpoint.spec, checkpoint.tensors)]
    found = [Finding("warning", where, doubt) for doubt in doubted]
    if isinstance(target, str | os.PathLike):
        try:
            target = read_target(target)
        except DFlashError as error:
            return [Finding("error", str(target), str(error)), *found]
    if target is not None:
        found += pair_findings(survey.spec, target)
    return sorted(found, key=lambda finding: finding.level)
