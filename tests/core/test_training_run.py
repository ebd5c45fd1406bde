"""A training run in its folder: which run it is, who works in it, and what is said of damaged files."""

import json

import pytest

from dflash_core.errors import DFlashError
from dflash_core.training.options import TrainOptions
from dflash_core.training.run import RUN, begin

ABOUT = {"target": "toy", "mask_token_id": 16}


def test_a_run_of_a_version_that_did_not_note_a_fact_notes_it_now(tmp_path):
    begin(tmp_path, TrainOptions(), {"target": "toy"})
    begin(tmp_path, TrainOptions(), ABOUT)
    assert json.loads((tmp_path / RUN).read_text())["mask_token_id"] == 16
    with pytest.raises(DFlashError, match="mask_token_id = 16, not 3"):
        begin(tmp_path, TrainOptions(), {**ABOUT, "mask_token_id": 3})
