"""Targets: what the data says, and that nothing else in the sources knows a device by its name."""

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

from tilewright.ir.target import TARGETS, get_target, target_of
from tilewright.ir.types import DTYPES, bf16, bool_, f8e4m3, f16, f32, f64, i8, i16, i32, u8

ROOT = Path(__file__).resolve().parents[2]
GPUS = [t for t in TARGETS.values() if t.is_gpu]
KINDS = {t.kind for t in TARGETS.values()}

# (file, comparison) -> why a device is told by its name there
BY_NAME = {
    ("api/machine.py", "name == 'cpu'"): "what a user writes for this machine's processor",
    ("runtime/artifact.py", "target.get('kind') != 'cpu'"): "a manifest, which may be of any build",
    ("runtime/engine/memory.py", "device.kind == 'cpu'"): "a device that is open, not a target",
    ("runtime/engine/runner.py", "executable.device.kind != 'cpu'"): "the same",
    ("api/dynamo_backend.py", "captured.device.type == 'cpu'"): "where torch has its tensors",
    ("api/dynamo_backend.py", "kind == 'cpu'"): "the same",
    ("api/arguments.py", "device.kind == 'cpu'"): "only torch's GPUs have streams to wait for",
    ("api/dynamo_backend.py", "kind not in ('cpu', 'cuda')"): "the same",
    ("frontend/dynamo.py", "x.device.type != 'cpu'"): "the same",
}


def comparisons() -> set[tuple[str, str]]:
    """Every comparison in the sources with the name of a target or the kind of a device."""
    found = set()
    for layer in ("ir", "frontend", "passes", "codegen", "runtime", "api", "cli"):
        for path in (ROOT / layer).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Compare) and any(map(is_a_device, ast.walk(node))):
                    found.add((name, ast.unparse(node)))
    return {item for item in found if item[0] != "ir/target.py"}


def is_a_device(node: ast.AST) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return node.value in KINDS | {"gpu"} or node.value.startswith(("sm_", "gfx"))


def test_devices_are_told_by_name_only_where_there_is_a_reason():
    assert comparisons() == set(BY_NAME)


def test_features_are_what_the_devices_have():
    """A table read across: whoever adds a device finds what to say of it."""
    have = {
        name: {t.name for t in GPUS if getattr(t, f"has_{name}")}
        for name in ("async_copies", "tile_copies", "dependent_launch")
    }
    assert have == {
        "async_copies": {"sm_80", "sm_86", "sm_90", "sm_100"},
        "tile_copies": {"sm_90", "sm_100"},
        "dependent_launch": {"sm_90", "sm_100"},
    }
    assert {t.name: t.warp_size for t in GPUS if t.warp_size != 32} == {"gfx942": 64}
    for target in TARGETS.values():
        assert min(target.bandwidth, target.rate, target.launch_us, target.num_cores) > 0
        assert all(op.rate > target.rate for op in target.matrix)
    for target in GPUS:
        assert min(target.registers, target.shared_bytes, target.max_threads) > 0


@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_a_matrix_unit_takes_what_it_multiplies_exactly(target):
    for dtype in (bf16, f16):
        op = target.matrix_op(dtype, dtype)
        assert (op.operand, op.total) == (dtype, f32)
    assert target.matrix_op(i8, i8).total == i32
    for pair in ((f64, f64), (f64, f32), (u8, u8), (i8, i16), (bool_, bool_)):
        assert target.matrix_op(*pair) is None, pair
    ops = {target.matrix_op(*pair) for pair in ((f16, bf16), (f32, bf16), (f32, f32))}
    has_singles = target.name in ("sm_80", "sm_90", "sm_100")
    assert [op and op.operand for op in ops] == [f32 if has_singles else None]
    for x, w in itertools.product(DTYPES.values(), repeat=2):
        op = target.matrix_op(x, w)
        assert op is None or (op.operand.holds(x) and op.operand.holds(w) and op.sum_bits >= 24)


def test_float8_goes_as_it_is_where_its_sums_are_exact_enough():
    fed = {t.name: t.matrix_op(f8e4m3, f8e4m3).operand for t in GPUS}
    assert fed.pop("sm_100") == f8e4m3
    assert {dtype.bits for dtype in fed.values()} == {16}
    assert all(t.matrix_op(f8e4m3, f16).operand == f16 for t in GPUS)


def test_rates_bound_a_kernel_from_below():
    target = get_target("sm_90")
    gigabyte = target.seconds(1e9, 0)
    assert gigabyte == pytest.approx(1 / 4260)
    assert target.seconds(1e9, 1.0) == gigabyte
    slow = target.seconds(0, 1e12)
    assert target.seconds(0, 1e12, bf16, bf16) < slow / 10
    assert target.rate_of(f64, f64) == target.rate / 2
    assert target.rate < target.rate_of(f32, bf16) < target.rate_of(bf16, bf16)
    assert get_target("sm_86").rate_of(f32, bf16) == get_target("sm_86").rate


def test_a_gpu_runs_code_of_its_own_major_version():
    assert target_of("sm_80").name == "sm_80"
    assert target_of("sm_86").name == target_of("sm_89").name == "sm_86"
    assert target_of("sm_89").shared_bytes == 99 * 1024 < target_of("sm_80").shared_bytes
    assert target_of("sm_103").name == "sm_100"
    assert target_of("sm_75") is None
    assert target_of("sm_120") is None


@pytest.mark.parametrize("small", [d for d in DTYPES.values() if d.bits <= 16], ids=str)
def test_holds_is_what_a_round_trip_says(small):
    """All values of a dtype of up to 16 bits, there and back."""
    numbers = np.arange(2 if small == bool_ else 2**small.bits)
    if small.is_float:
        values = numbers.astype(f"u{small.nbytes}").view(small.numpy)
    else:
        values = numbers.astype(small.numpy)
    for dtype in DTYPES.values():
        if small.is_float and not dtype.is_float:
            assert not dtype.holds(small)
            continue
        with np.errstate(all="ignore"):
            wide = values.astype(np.float64)
            there = dtype.convert(values).astype(np.float64)
        same = (wide == there) | (np.isnan(wide) & np.isnan(there))
        assert dtype.holds(small) == bool(same.all()), dtype
