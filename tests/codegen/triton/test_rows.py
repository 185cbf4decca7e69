"""How rows, columns and transposes are laid over programs, of sizes that fit no tile."""


import pytest

from tilewright.codegen.elements import index_facts
from tilewright.codegen.loops import Pointwise, Reduce
from tilewright.codegen.merge_axes import with_merged_axes
from tilewright.codegen.templates import choices
from tilewright.codegen.templates.pointwise import PointwiseSchedule, crossing
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.builder import Builder
from tilewright.ir.target import REFERENCE
from tilewright.ir.types import bf16, f32

from . import samples
from .harness import check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")


def turned(shape, perm, dtype=f32, sizes=None, scale=True):
    """A transpose, and what is read as it is written."""
    b = Builder()
    dims = tuple(b.dim(d, 1, 512) if isinstance(d, str) else d for d in shape)
    y = b.transpose(b.input("x", dims, dtype), perm=perm)
    if scale:
        y = b.mul(y, b.input("y", y.shape, dtype))
    return samples.make(b, [y], sizes or {})


@pytest.mark.parametrize("block", [64, 512])
@pytest.mark.parametrize(
    ("shape", "perm", "sizes"),
    [
        ((37, 20), (1, 0), {}),
        (("m", "n"), (1, 0), {"m": 21, "n": 50}),
        ((2, 17, 3, 7), (0, 2, 3, 1), {}),  # channels last: (3, 7) is one axis
        ((2, 19, 3, 16), (0, 2, 3, 1), {}),
        ((3, 4, 20, 18), (2, 0, 3, 1), {}),  # nothing reads along one axis
    ],
)
def test_what_is_read_across_is_turned(runner, block, shape, perm, sizes):
    case = turned(shape, perm, sizes=sizes)
    case.kernel = with_merged_axes(case.kernel)
    check(runner, case, PointwiseSchedule(block, 1))


def test_a_transpose_has_a_side_of_the_tile_along_each_axis():
    for shape, perm in (((64, 96), (1, 0)), ((2, 32, 4, 8), (0, 2, 3, 1))):
        kernel = with_merged_axes(turned(shape, perm, bf16).kernel)
        (_, _, schedule), *_ = choices(kernel, REFERENCE)[1]
        (launch,) = emit_kernel(kernel, "turn", schedule, REFERENCE)
        assert "[:, None]" in launch.source
        assert schedule.block >= 1024
    for shape, perm in (((64, 96), (0, 1)), ((8, 64, 96), (1, 0, 2)), ((64, 3), (1, 0))):
        kernel = with_merged_axes(turned(shape, perm, scale=False).kernel)
        assert crossing(kernel.parts[0], index_facts(kernel)) is None


def test_axes_that_indices_take_together_are_one():
    kernel = samples.pointwise().kernel
    b = Builder()
    x = b.input("x", (2, 3, 4, 5))
    plain = samples.make(b, [b.exp(x)], {}).kernel
    (part,) = with_merged_axes(plain).parts
    assert isinstance(part, Pointwise)
    assert [a.extent for a in part.axes] == [120]
    b = Builder()
    x = b.input("x", (2, 3, 4, 5))
    over = samples.make(b, [b.sum(x, axes=(1,))], {}).kernel
    (part,) = with_merged_axes(over).parts
    assert isinstance(part, Reduce)
    assert [a.extent for a in part.rows] == [2, 20]
    assert with_merged_axes(with_merged_axes(kernel)) == with_merged_axes(kernel)
