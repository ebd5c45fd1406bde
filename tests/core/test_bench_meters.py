"""Energy and memory: what is reported is read right, and what is not is not invented."""

import pytest

from dflash_core.bench import meters
from dflash_core.bench.environment import changes, describe_environment
from dflash_core.bench.meters import EnergyReading, begin_memory, read_energy, read_memory


def zone(folder, name, energy, most=10_000_000):
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{energy}\n")
    (path / "max_energy_range_uj").write_text(f"{most}\n")


@pytest.fixture(autouse=True)
def _one_gpu(monkeypatch):
    monkeypatch.setattr(meters, "_gpu_joules", lambda: {"gpu:0": 7.0})


def test_packages_are_summed_and_their_parts_are_not_counted_twice(tmp_path):
    for name, energy in (
        ("intel-rapl:0", 1_000_000),
        ("intel-rapl:0:0", 500_000),
        ("intel-rapl:1", 2_000_000),
    ):
        zone(tmp_path, name, energy)
    before = read_energy(tmp_path)
    assert dict(before.joules) == {"intel-rapl:0": 1.0, "intel-rapl:1": 2.0}
    zone(tmp_path, "intel-rapl:0", 1_500_000)
    zone(tmp_path, "intel-rapl:1", 2_250_000)
    assert read_energy(tmp_path).since(before) == pytest.approx(0.75)


def test_a_counter_that_began_anew_is_understood(tmp_path):
    zone(tmp_path, "intel-rapl:0", 9_500_000)
    before = read_energy(tmp_path)
    zone(tmp_path, "intel-rapl:0", 500_000)
    assert read_energy(tmp_path).since(before) == pytest.approx(1.0)


def test_gpus_count_only_where_they_may_be_used(tmp_path):
    assert dict(read_energy(tmp_path).joules) == {}
    assert dict(read_energy(tmp_path, gpus=True).joules) == {"gpu:0": 7.0}


def test_where_nothing_reports_there_is_no_figure(tmp_path):
    nothing = read_energy(tmp_path / "missing")
    assert nothing.since(nothing) is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert read_energy(tmp_path).since(read_energy(tmp_path)) is None
    assert EnergyReading({"gpu:0": 5.0}, {}).since(EnergyReading({"gpu:0": 3.0}, {})) == 2.0


def test_the_peak_is_that_of_the_stretch():
    begin_memory()
    block = bytearray(64 << 20)
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])
    high = read_memory()
    if not high:
        pytest.skip("this system does not tell the memory of a process")
    del block
    assert high["peak"] >= high["resident"] >= 64 << 20
    begin_memory()
    later = read_memory()
    if later["peak"] == high["peak"]:
        pytest.skip("this system does not let a peak begin anew")
    assert later["peak"] <= high["peak"] - (32 << 20)


def test_two_sittings_are_told_apart_by_what_is_of_the_machine():
    found = describe_environment()
    assert changes(found, {**found, "measured": "later", "load_before": 9.0}) == []
    moved = {**found, "cores": 3, "packages": {**found["packages"], "numpy": "0"}}
    assert changes({**found, "cores": 2}, moved) == [
        "cores was 2 and is 3",
        f"numpy was {found['packages']['numpy']} and is 0",
    ]


def test_the_environment_names_versions_and_the_machine():
    found = describe_environment()
    assert found["packages"]["dflash-core"]
    assert found["cores"] >= 1
    assert found["python"].count(".") == 2
