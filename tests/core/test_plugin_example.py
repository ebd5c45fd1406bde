"""A stranger's package, installed for real, adds a verifier, a layout and a command without touching ours."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "plugin_example"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A folder to put on the path, with the example and a package whose plugin cannot be imported."""
    folder = tmp_path_factory.mktemp("installed")
    sources = tmp_path_factory.mktemp("sources") / "example"
    # Copied: building leaves files beside the sources.
    shutil.copytree(EXAMPLE, sources)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder)]
    subprocess.run([*pip, *options, str(sources)], check=True, capture_output=True, text=True)
    broken = folder / "broken_one-0.1.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-one\nVersion: 0.1\n")
    (broken / "entry_points.txt").write_text("[dflash_core]\nbroken = a_module_that_is_not_there\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(environment, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_listed_and_the_broken_one_beside_it_with_its_cause(environment):
    listing = json.loads(run(environment, "-m", "dflash_core", "plugins", "--json"))
    example = next(one for one in listing["plugins"] if one["source"]["plugin"] == "example")
    assert example["source"]["distribution"] == "dflash-example"
    assert example["source"]["version"] == "1.2.3"
    assert example["provides"] == {"verifiers": ["patient"], "dialects": ["prefixed"], "commands": ["hello"]}
    assert environment["PYTHONPATH"] in example["location"]
    broken = next(one for one in listing["failures"] if one["source"]["plugin"] == "broken")
    assert "No module named 'a_module_that_is_not_there'" in broken["cause"]


def test_people_see_the_same_in_the_table(environment):
    table = run(environment, "-m", "dflash_core", "plugins")
    for word in (
        "dflash-example 1.2.3",
        "patient",
        "prefixed",
        "broken-one 0.1",
        "a_module_that_is_not_there",
    ):
        assert word in table


def test_its_command_stands_beside_ours(environment):
    assert "hello" in run(environment, "-m", "dflash_core", "--help")
    assert run(environment, "-m", "dflash_core", "hello", "--name", "you") == "hello you\n"


VERIFY = """
import torch
from dflash_core.plugins import provider
from dflash_core.proposal import Proposal
from dflash_core.sampling import SamplingParams, sampling_batch
from dflash_core.tree import chain

tokens = torch.tensor([[5, 1, 2, 3]])
logits = torch.nn.functional.one_hot(torch.tensor([[1, 2, 3, 4]]), 8).float()
proposal = Proposal(chain(tokens, torch.tensor([4])))
sampling = sampling_batch([SamplingParams()], [7])
for name in ("sampling", "patient"):
    verdict = provider("verifiers", name)().verify(proposal, logits, sampling)
    print(verdict.accepted.tolist(), verdict.tokens.tolist())
"""


def test_its_verifier_is_resolved_by_name_and_answers(environment):
    ours, theirs = run(environment, "-c", VERIFY).splitlines()
    assert ours == "[3] [[1, 2, 3, 4]]"
    assert theirs == "[1] [[1, 2, -1, -1]]"


CONVERT = """
import sys, torch
from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.checkpoint.save import save_checkpoint

source, folder = sys.argv[1:]
first = load_checkpoint(source)
save_checkpoint(first, folder, dialect="prefixed")
second = load_checkpoint(folder)
same = all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
print(second.spec.dialect, len(second.tensors) == len(first.tensors) and same)
"""


def test_its_layout_is_written_recognised_and_read(environment, tmp_path):
    """With a draft of v1, which is what the layout is for."""
    draft = Path(__file__).parents[2] / "drafts/SmolLM2-135M-Instruct-DFlash-b8-borrowed"
    assert run(environment, "-c", CONVERT, str(draft), str(tmp_path / "out")).strip() == "prefixed True"
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["PrefixedDraft"]
