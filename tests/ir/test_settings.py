"""Switches, errors, targets, and the layout of the cache: small data with strict edges."""

import pytest

from tilewright.ir import switches
from tilewright.ir.errors import DeviceError, OptionError, OutOfPages, TilewrightError
from tilewright.ir.layout import KVLayout, LayerKV, Pool
from tilewright.ir.target import TARGETS, cpu, get_target
from tilewright.ir.types import bf16, f8e4m3, f16, f32


def test_a_message_has_four_parts_in_order():
    error = OutOfPages("what", where="where", facts="one\ntwo", fix="do this")
    assert str(error) == "what\n  at where\n  one\n  two\n  do this"
    assert error.kind == "OutOfPages"
    assert str(TilewrightError("only this")) == "only this"
    assert isinstance(error, TilewrightError)


def test_switches_from_the_environment(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    monkeypatch.setenv("TILEWRIGHT_LOG", "passes, runtime")
    monkeypatch.setenv("TILEWRIGHT_DUMP", "")
    assert switches.get("threads") == 3
    assert switches.get("log") == ("passes", "runtime")
    assert switches.get("dump") is None


def test_scoped_switches_win_and_nest(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CHECK", "1")
    with switches.switches(check="2"):
        assert switches.get("check") == "2"
        with switches.switches(check="0", log=("cache",)):
            assert switches.get("check") == "0"
            assert switches.get("log") == ("cache",)
        assert switches.get("check") == "2"
    assert switches.get("check") == "1"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("check", "3", "TILEWRIGHT_CHECK='3': '3' is not a choice(.|\n)*choices: 0, 1, 2"),
        ("threads", "0", "TILEWRIGHT_THREADS='0' is not a positive number"),
        ("threads", "many", "is not a positive number"),
        ("log", "passes,all", "'all' is not a choice(.|\n)*codegen"),
    ],
)
def test_a_bad_value_is_loud(monkeypatch, name, value, message):
    monkeypatch.setenv(f"TILEWRIGHT_{name.upper()}", value)
    with pytest.raises(OptionError, match=message):
        switches.get(name)
    with pytest.raises(OptionError, match=message), switches.switches(**{name: value}):
        pass


def test_an_unknown_switch_names_the_known_ones():
    unknown = r"no switch named 'dumps'(.|\n)*dump, check"
    with pytest.raises(OptionError, match=unknown), switches.switches(dumps="x"):
        pass


def test_every_switch_has_a_variable_and_a_sentence():
    for switch in switches.TABLE:
        assert switch.variable == f"TILEWRIGHT_{switch.name.upper()}"
        assert switch.doc.endswith(".")


def test_targets():
    assert get_target("sm_90").is_gpu
    assert not cpu().is_gpu
    assert cpu("znver4", 8).march == "znver4"
    for name, target in TARGETS.items():
        assert target.name == name
        assert f32 in target.dtypes
        assert target.warp_size > 1 or not target.is_gpu
    with pytest.raises(OptionError, match=r"no target named 'sm_42'(.|\n)*sm_90(.|\n)*auto"):
        get_target("sm_42")


def test_a_dtype_that_a_target_lacks():
    get_target("sm_90").require_dtype(f8e4m3, "weights")
    with pytest.raises(DeviceError, match=r"sm_80 has no f8e4m3(.|\n)*at weights(.|\n)*bf16"):
        get_target("sm_80").require_dtype(f8e4m3, "weights")


def test_layouts_of_the_cache():
    layers = (
        LayerKV(Pool("k_0", 2, 64, bf16), Pool("v_0", 2, 64, bf16)),
        LayerKV(Pool("k_1", 1, 48, f32), Pool("v_1", 1, 32, f16), window=512),
    )
    layout = KVLayout(16, layers)
    assert layout.page_bytes == 16 * (2 * 2 * 64 * 2 + 48 * 4 + 32 * 2)
    assert str(layout.pools[2].type("p", 16).dtype) == "f32"
    assert layout.pools[3].type(7, 16).shape == (7, 1, 16, 32)
