"""Runs `triton_checks.py`: on a GPU where there is one, else in Triton's interpreter.

Triton decides which of the two when it is imported first, and other tests may have imported it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

CHECKS = Path(__file__).with_name("triton_checks.py")


def test_the_kernels_do_what_their_references_do():
    mode = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)]
    done = subprocess.run(command, env={**os.environ, **mode}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
