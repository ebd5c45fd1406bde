"""A training run that several processes share; as a script, one of them: FOLDER, WHAT rank 1 does, STEP."""

import os
import signal
import sys
from pathlib import Path

import torch
from drafter_spec import second_spec
from test_training import corpus

from dflash_core.errors import DFlashError
from dflash_core.training.execution import Execution
from dflash_core.training.model import TrainableDraft
from dflash_core.training.options import TrainOptions
from dflash_core.training.processes import joined
from dflash_core.training.run import begin
from dflash_core.training.start import random_tensors
from dflash_core.training.trainer import Trainer

STEPS = 10


def trainer(folder, execution, **changes):
    """With all that might depend on who computes what: noise, weights by confidence, a selector."""
    spec = second_spec()
    recipe = {"steps": STEPS, "batch": 8, "anchors": 6, "block_size": 5, "learning_rate": 5e-3}
    options = TrainOptions(**{**recipe, "noise": 0.05, "weighting": "dpace", **changes})
    embedding = torch.randn(spec.vocab_size, spec.hidden_size, generator=torch.Generator().manual_seed(5))
    model = TrainableDraft(spec, execution.processes.share(lambda: random_tensors(spec, 0)))
    if execution.leads:
        begin(folder, options, {"target": "toy"})
    return Trainer(model, corpus(spec), embedding, embedding, options, folder, execution), model


def main(folder, what, step):
    with joined("cpu") as processes:
        run, _ = trainer(Path(folder), Execution(processes, accumulate=2))
        asked = iter(range(1000))

        def keep_going():
            if processes.rank != 1 or next(asked) < int(step):
                return True
            if what == "raises":
                raise DFlashError("Rank 1 cannot go on.")
            if what == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            return what != "stops"

        run.train(keep_going=keep_going)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DFlashError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
