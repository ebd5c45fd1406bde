"""The fast path changes how linear layers are computed, and nothing that anyone can see of a model."""

import copy
import json
import logging

import pytest
import torch
from torch import nn

from dflash_core.errors import SettingsError
from dflash_core.fastpath import (
    LayoutTable,
    apply_fast_path,
    calibrate_layouts,
    enable,
    enable_fast_path,
    module,
    narrow,
    quiet,
)
from dflash_core.fastpath.choice import ROWS, choose
from dflash_core.fastpath.narrow import narrow_shapes
from dflash_core.fastpath.store import recall, remember
from dflash_kernels.few_row_linear.layouts import LAYOUTS, available
from dflash_kernels.folders import cache_root

SHAPES = [(24, 16), (16, 24), (40, 16)]


class Net(nn.Module):
    """A little network with a tied head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(40, 16)
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16, bias=False)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.down(torch.tanh(self.up(self.embed(tokens)))))


def table_of(layout, shapes=SHAPES):
    """Everything up to 32 rows in one layout."""
    return LayoutTable(dict.fromkeys(shapes, tuple((rows, layout) for rows in ROWS)), {1: 1.0})


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch, tmp_path):
    """Whatever else runs here, these tests measure."""
    monkeypatch.setattr(quiet, "_switches", lambda: 0)
    monkeypatch.setattr(quiet, "GLANCE", 0.01)
    monkeypatch.setenv("DFLASH_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("layout", [name for name in available() if name != "linear"])
def test_a_model_computes_the_same_with_any_number_of_rows(layout):
    plain, fast = Net(), Net()
    assert apply_fast_path(fast, table_of(layout)) == 3
    with torch.no_grad():
        for rows in (*range(1, 10), 31, 32, 33, 50):
            tokens = torch.arange(rows) % 40
            for shaped in (tokens, tokens[None, None]):
                torch.testing.assert_close(fast(shaped), plain(shaped), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", [name for name in available() if name != "linear"])
def test_the_layout_asked_for_is_the_one_that_computes(layout, monkeypatch):
    net, seen = Net(), []
    apply_fast_path(net, table_of(layout))
    multiply = module.few_row_linear
    monkeypatch.setattr(module, "few_row_linear", lambda *args: seen.append(args[3]) or multiply(*args))
    with torch.no_grad():
        net(torch.arange(4))
    assert seen == [layout] * 3


def test_weights_stay_shared_and_tied():
    net = Net()
    before = dict(net.named_parameters())
    keys = list(net.state_dict())
    apply_fast_path(net, table_of("column"))
    assert all(parameter is before[name] for name, parameter in net.named_parameters())
    assert net.head.weight is net.embed.weight
    assert list(net.state_dict()) == keys


def test_a_layer_in_two_places_stays_one_layer():
    net = Net()
    net.again = net.up
    assert apply_fast_path(net, table_of("column")) == 3
    assert net.again is net.up


def test_what_is_not_a_plain_float32_layer_is_left_alone():
    class Scaled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    hooked = nn.Linear(16, 24)
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    layers = nn.ModuleList([Scaled(16, 24), hooked, nn.Linear(16, 24).bfloat16(), nn.Linear(16, 24).double()])
    kinds = [type(layer) for layer in layers]
    assert apply_fast_path(layers, table_of("column")) == 0
    assert [type(layer) for layer in layers] == kinds
    assert apply_fast_path(nn.ModuleList([nn.Linear(5, 5)]), table_of("column")) == 0  # not measured


@pytest.mark.parametrize("layout", [name for name in available() if name != "linear"])
def test_gradients_flow_as_ever(layout):
    plain, fast = Net(), Net()
    apply_fast_path(fast, table_of(layout))
    for net in (plain, fast):
        net(torch.arange(4)).square().sum().backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("layout", [name for name in available() if name != "linear"])
def test_a_weight_that_changes_is_the_one_that_counts(layout):
    net = Net()
    apply_fast_path(net, table_of(layout))
    tokens = torch.arange(4)
    with torch.no_grad():
        net.down.weight.mul_(3)
        fresh = Net()
        fresh.down.weight.mul_(3)
        torch.testing.assert_close(net(tokens), fresh(tokens), rtol=1e-5, atol=1e-5)
        net.load_state_dict(Net().state_dict())
        torch.testing.assert_close(net(tokens), Net()(tokens), rtol=1e-5, atol=1e-5)
        wide = net.double()(tokens)
        assert wide.dtype == torch.float64
        torch.testing.assert_close(net.float()(tokens).double(), wide, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", [name for name in available() if name != "linear"])
def test_a_copy_of_the_model_is_whole(layout):
    net = Net()
    apply_fast_path(net, table_of(layout))
    twin = copy.deepcopy(net)
    with torch.inference_mode():
        torch.testing.assert_close(twin(torch.arange(4)), net(torch.arange(4)))


def short_weights():
    """A network whose weights bfloat16 holds exactly, but for one layer's."""
    net = Net()
    with torch.no_grad():
        for parameter in (net.embed.weight, net.up.weight):
            parameter.copy_(parameter.bfloat16())
    return net


needs_compiler = pytest.mark.skipif("compiled" not in available(), reason="this machine has no C compiler")


@needs_compiler
def test_weights_that_bfloat16_holds_are_read_as_that(monkeypatch):
    net = short_weights()
    shapes = narrow_shapes([net.embed.weight, net.up.weight, net.down.weight])
    assert shapes == {(40, 16), (24, 16)}
    apply_fast_path(net, table_of("compiled"), shapes)
    read = []
    product = module.few_row_linear
    monkeypatch.setattr(
        module, "few_row_linear", lambda x, w, b, layout: read.append(w.dtype) or product(x, w, b, layout)
    )
    with torch.inference_mode():
        for rows in (1, 3, 8):
            tokens = torch.arange(rows)
            torch.testing.assert_close(net(tokens), short_weights()(tokens), rtol=1e-5, atol=1e-6)
    assert read == [torch.bfloat16, torch.float32, torch.bfloat16] * 3


@needs_compiler
def test_a_short_weight_that_changes_is_the_one_that_counts():
    net = short_weights()
    apply_fast_path(net, table_of("compiled"), {(40, 16), (24, 16)})
    tokens = torch.arange(4)
    with torch.no_grad():
        net(tokens)
        net.up.weight.mul_(1.2345)
        fresh = short_weights()
        fresh.up.weight.mul_(1.2345)
        torch.testing.assert_close(net(tokens), fresh(tokens), rtol=1e-5, atol=1e-6)
        twin = copy.deepcopy(net)
        torch.testing.assert_close(twin(tokens), fresh(tokens), rtol=1e-5, atol=1e-6)


@needs_compiler
def test_a_weight_that_is_exchanged_behind_torchs_back_is_the_one_that_counts():
    net = short_weights()
    apply_fast_path(net, table_of("compiled"), {(40, 16), (24, 16)})
    tokens = torch.arange(4)
    with torch.no_grad():
        net(tokens)
        net.up.weight.data = torch.randn(24, 16)
        fresh = short_weights()
        fresh.up.weight.data = net.up.weight.data.clone()
        torch.testing.assert_close(net(tokens), fresh(tokens), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", [name for name in available() if name != "linear"])
def test_what_a_layout_is_not_made_for_is_torchs(layout):
    net = Net()
    apply_fast_path(net, table_of(layout))
    plain = Net()
    with torch.no_grad():
        for wrong in (
            torch.ones(3, 16).double(),
            torch.ones(3, 12),
            torch.ones(3, 48),
            torch.ones(3, 16).long(),
        ):
            with pytest.raises(RuntimeError):
                net.up(wrong)
        for bias in (torch.arange(48.0)[::2], torch.ones(1).expand(24)):
            net.up.bias = plain.up.bias = nn.Parameter(bias)
            x = torch.randn(3, 16)
            torch.testing.assert_close(net.up(x), plain.up(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert net.down(torch.ones(2, 24)).dtype == torch.bfloat16


@pytest.mark.parametrize("layout", [name for name in available() if name != "linear"])
def test_the_default_dtype_changes_nothing(layout):
    net = Net()
    apply_fast_path(net, table_of(layout))
    with torch.no_grad():
        expected = net(torch.arange(5))
        torch.set_default_dtype(torch.bfloat16)
        try:
            assert torch.equal(net(torch.arange(5)), expected)
        finally:
            torch.set_default_dtype(torch.float32)


def test_only_weights_that_nobody_changes_are_copied(monkeypatch):
    seen = []
    monkeypatch.setattr(
        enable, "calibrate_layouts", lambda weights, narrow: seen.append(set(narrow)) or table_of("column")
    )
    enable_fast_path(short_weights())
    enable_fast_path(short_weights(), frozen=True)
    assert seen == [set(), {(40, 16), (24, 16)} if "compiled" in available() else set()]


def test_short_copies_are_not_made_of_more_than_a_limit(monkeypatch):
    weights = [short_weights().up.weight]
    monkeypatch.setattr(narrow, "MOST_BYTES", 2 * 24 * 16 - 1)
    assert narrow_shapes(weights) == frozenset()


def test_weights_that_are_not_finite_do_no_harm():
    weight = torch.tensor([[float("nan"), 1.0], [float("inf"), -0.0]])
    assert not narrow.exact(weight)


def _costs(column=None, sliced=None):
    """Torch needs 10 + rows; the others as given, by rows."""
    costs = {"linear": {rows: 10.0 + rows for rows in ROWS}}
    for layout, cost in (("column", column), ("sliced", sliced)):
        if cost is not None:
            costs[layout] = {rows: cost(rows) for rows in ROWS}
    return costs


def test_torchs_own_layout_stays_where_nothing_is_faster():
    same = _costs(lambda rows: 10.0 + rows, lambda rows: 9.9 + rows)
    assert {layout for _, layout in choose(same)} == {"linear"}


def test_one_range_of_rows_gets_the_layout_that_is_faster_there():
    chosen = dict(choose(_costs(column=lambda rows: 11.0 if rows <= 8 else 60.0)))
    assert [rows for rows in ROWS if chosen[rows] == "column"] == [2, 3, 4, 5, 6, 8]
    assert all(chosen[rows] == "linear" for rows in (1, 12, 16, 24, 32))


def test_a_single_slow_measurement_does_not_split_the_range():
    chosen = dict(choose(_costs(column=lambda rows: 60.0 if rows > 12 else 14.0 if rows == 4 else 10.0)))
    assert [rows for rows in ROWS if chosen[rows] == "column"] == [1, 2, 3, 4, 5, 6, 8, 12]


def test_the_layout_that_saves_more_is_taken():
    chosen = dict(choose(_costs(lambda rows: 11.0, lambda rows: 10.0)))
    assert set(chosen.values()) == {"sliced"}


def test_a_table_is_written_and_read_back():
    table = LayoutTable({(8, 4): ((1, "linear"), (8, "sliced"), (32, "column"))}, {1: 0.5, 8: 0.7})
    assert LayoutTable.from_json(json.loads(json.dumps(table.to_json()))) == table
    layouts = table.layouts((8, 4))
    assert len(layouts) == 33
    assert layouts[1] == "linear"
    assert set(layouts[2:9]) == {"sliced"}
    assert set(layouts[9:]) == {"column"}
    assert table.layouts((5, 5)) == ("linear",)


@pytest.mark.parametrize(
    "steps",
    [
        {"8x4": [[1, "fancy"]]},
        {"8x4": [[8, "mkl:8"]]},
        {"8x4": [[4, "linear"], [2, "linear"]]},
        {"8x4": 7},
        {"8": [[1, "linear"]]},
        [],
    ],
)
def test_a_table_that_makes_no_sense_is_refused(steps):
    with pytest.raises(ValueError, match=r"."):
        LayoutTable.from_json({"steps": steps, "seconds": {}})


def test_calibration_covers_every_shape_and_row_count():
    weights = [parameter for parameter in Net().parameters() if parameter.ndim == 2]
    table = calibrate_layouts(weights)
    assert set(table.steps) == {(40, 16), (24, 16), (16, 24)}
    for steps in table.steps.values():
        assert [rows for rows, _ in steps] == list(ROWS)
        assert all(layout in LAYOUTS for _, layout in steps)
    assert list(table.seconds) == list(ROWS)
    assert min(table.seconds.values()) > 0


def test_off_touches_nothing():
    net = Net()
    assert enable_fast_path(net, "off").layers == 0
    assert type(net.up) is nn.Linear


def test_an_unknown_setting_names_the_known_ones():
    with pytest.raises(SettingsError, match="fast is 'turbo'; it must be one of: auto, off"):
        enable_fast_path(Net(), "turbo")


def test_a_machine_is_measured_once(monkeypatch, tmp_path):
    measured = []
    monkeypatch.setattr(
        enable, "calibrate_layouts", lambda weights, narrow: measured.append(1) or table_of("column")
    )
    assert enable_fast_path(Net(), "auto").layers == 3
    assert enable_fast_path(Net(), "auto").layers == 3
    assert measured == [1]
    enable_fast_path(Net().down)
    assert measured == [1]  # nothing to replace in a bare layer
    enable_fast_path(nn.ModuleList([nn.Linear(16, 24)]))
    assert measured == [1, 1]  # another model
    enable_fast_path(Net(), "auto", cache_dir=tmp_path / "elsewhere")
    assert measured == [1] * 3


def test_a_damaged_measurement_is_made_again(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(enable, "calibrate_layouts", lambda weights, narrow: table_of("column"))
    enable_fast_path(Net(), "auto")
    (kept,) = (tmp_path / "calibration").iterdir()
    record = json.loads(kept.read_text())
    for damage in ('{"key": ', json.dumps({**record, "value": {"steps": 3}})):
        kept.write_text(damage)
        with caplog.at_level(logging.WARNING):
            assert enable_fast_path(Net(), "auto").layers == 3
        assert "measured anew" in caplog.text
        caplog.clear()
        assert json.loads(kept.read_text()) == record


def test_a_busy_machine_leaves_layers_alone_and_says_so(monkeypatch, tmp_path, caplog):
    switches = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(quiet, "_switches", lambda: next(switches))
    net = Net()
    report = enable_fast_path(net)
    assert report.layers == 0
    assert "too busy" in report.reason
    assert "too busy" in caplog.text
    assert type(net.up) is nn.Linear
    assert not list(tmp_path.rglob("*.json"))


def test_the_store_knows_its_own_keys_only(tmp_path, caplog):
    remember("x", {"cpu": "a"}, [1, 2], tmp_path)
    assert recall("x", {"cpu": "a"}, tmp_path) == [1, 2]
    assert recall("x", {"cpu": "b"}, tmp_path) is None
    assert recall("y", {"cpu": "a"}, tmp_path) is None
    (tmp_path / "blocked").write_text("a file where a folder should be")
    remember("x", {"cpu": "a"}, 1, tmp_path / "blocked")
    assert "cannot be written" in caplog.text


def test_the_environment_chooses_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("DFLASH_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"
    monkeypatch.delenv("DFLASH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "dflash-core"
