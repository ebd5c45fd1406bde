"""Loading takes the memory of the file and little more, and a hostile file takes little."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_samples import ZLAB_1, entry, write, write_header

CONFIG = "config.json"

PEAK = """
import re, sys
from pathlib import Path
import torch
from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.checkpoint.speculators import DIALECT as speculators
from dflash_core.checkpoint.zlab import DIALECT as zlab
from dflash_core.errors import DFlashError

def resident(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

torch.isfinite(torch.zeros(1 << 20)).all()
for folder in sys.argv[1:]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    try:
        kept = load_checkpoint(folder, {"zlab": zlab, "speculators": speculators})
        outcome = "loaded"
    except DFlashError as error:
        outcome = "refused"
    print(outcome, resident("VmHWM") - before)
"""
on_linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")


def peaks(*folders: Path) -> list[tuple[str, int]]:
    """What came of loading each, and by how many bytes the process grew meanwhile, at its peak."""
    command = [sys.executable, "-c", PEAK, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(outcome, int(size)) for outcome, size in map(str.split, done.stdout.splitlines())]


@on_linux
def test_loading_takes_the_size_of_the_file_and_little_more(tmp_path):
    wide = {"hidden_size": 1024, "intermediate_size": 8192, "num_attention_heads": 8, "head_dim": 128}
    folder = write(tmp_path / "draft", {**ZLAB_1, **wide})
    size = (folder / "model.safetensors").stat().st_size
    ((outcome, grown),) = peaks(folder)
    assert outcome == "loaded"
    assert size > 100 << 20
    assert size < grown < size + (64 << 20)


def tensor_of_an_exbibyte(folder: Path) -> None:
    write_header(folder, {"fc.weight": entry([1 << 30, 1 << 29], [0, 1 << 60])})


def header_of_an_exbibyte(folder: Path) -> None:
    write_header(folder, {}, length=1 << 60)


def header_of_many_small_values(folder: Path) -> None:
    write_header(folder, b'{"a":[' + b"{}," * ((1 << 20) // 3 - 10) + b"{}]}")


def config_of_many_small_values(folder: Path) -> None:
    (folder / CONFIG).write_bytes(b'{"a":[' + b'{"":0},' * ((1 << 20) // 7 - 10) + b"{}]}")


def config_of_a_gigabyte(folder: Path) -> None:
    with (folder / CONFIG).open("wb") as stream:
        stream.truncate(1 << 30)


def config_of_huge_sizes(folder: Path) -> None:
    huge = {
        "hidden_size": 1 << 20,
        "intermediate_size": 1 << 20,
        "num_hidden_layers": 512,
        "vocab_size": 1 << 24,
    }
    (folder / CONFIG).write_text(json.dumps({**ZLAB_1, **huge, "layer_types": ["full_attention"] * 512}))


@on_linux
def test_a_hostile_file_costs_little_memory(tmp_path):
    attacks = (
        tensor_of_an_exbibyte,
        header_of_an_exbibyte,
        header_of_many_small_values,
        config_of_many_small_values,
        config_of_a_gigabyte,
        config_of_huge_sizes,
    )
    folders = [write(tmp_path / attack.__name__, ZLAB_1) for attack in attacks]
    for attack, folder in zip(attacks, folders, strict=True):
        attack(folder)
    for outcome, grown in peaks(*folders):
        assert outcome == "refused"
        assert grown < 64 << 20
