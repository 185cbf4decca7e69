"""What ops declare of themselves, against what their references do, on every sample."""

import itertools

import numpy as np
import pytest

from tilewright.ir.axes import Axes
from tilewright.ir.dim import Symbol
from tilewright.ir.evaluate import evaluate_node
from tilewright.ir.facts import Facts
from tilewright.ir.index_map import (
    Checked,
    Choose,
    Fill,
    IndexContext,
    Number,
    Read,
    map_index,
)
from tilewright.ir.op import OPS
from tilewright.ir.ranges import Ranges
from tilewright.ir.types import f32, i64

from .samples import SAMPLES
from .test_reference import inputs_of

BY_OP = {op: [s for s in SAMPLES if s.op == op] for op in dict.fromkeys(s.op for s in SAMPLES)}
MAPPED = [op for op in BY_OP if OPS[op].index_map is not None]


def of_one_dtype(op):
    return [s for s in BY_OP[op] if all(o.dtype in (f32, i64) for o in s.operands[:1])]


def node_of(sample):
    return sample.graph().nodes[-1]


def results_of(node, arrays):
    symbols = {name: Symbol(name, 0) for name in node.binds}
    return evaluate_node(node, arrays, {}, None, symbols)


class Concrete(IndexContext):
    """An index map at numbers, over arrays."""

    def __init__(self, node, arrays):
        self.arrays = arrays
        self.result, self.facts = node.results[0].type, Facts({})

    def lookup(self, operand, index, size, wraps=False):
        found = int(self.read(operand, index))
        assert -size * wraps <= found < size
        return found + size * (wraps and found < 0)

    def read(self, operand, index):
        array = self.arrays[operand]
        assert all(0 <= at < size for at, size in zip(index, array.shape, strict=True))
        return array[index]

    def value(self, mapped):
        match mapped:
            case Read(operand, index):
                return self.read(operand, index)
            case Fill(value) | Number(value):
                return value
            case Checked(operand, index, size, wraps):
                return self.lookup(operand, index, size, wraps)
            case Choose(lhs, rhs, then, other):
                return self.value(then if lhs < rhs else other)


@pytest.mark.parametrize("op", MAPPED)
def test_index_maps_read_what_the_reference_takes(op):
    for sample in BY_OP[op]:
        check_map(sample)


def check_map(sample):
    node, arrays = node_of(sample), inputs_of(sample)
    (want,) = results_of(node, arrays)
    at = Concrete(node, arrays)
    for index in np.ndindex(want.shape):
        mapped = map_index(node, at, index)
        got = np.asarray(at.value(mapped)).astype(want.dtype)
        assert got == want[index] or (got != got and want[index] != want[index])
        if node.op.inverse is not None:
            source = node.operands[0].type
            assert node.op.inverse(at.facts, mapped.index, source, **node.attrs) == index


@pytest.mark.parametrize("op", BY_OP)
def test_along_a_kept_axis_places_are_apart_and_treated_alike(op):
    for sample in of_one_dtype(op):
        check_axes(sample)


def check_axes(sample):
    node, arrays = node_of(sample), inputs_of(sample)
    (want, *_) = results_of(node, arrays)
    along = Axes(Facts({})).of(node)
    for number, axes in enumerate(along):
        assert len(axes) == arrays[number].ndim
        for axis, place in enumerate(axes):
            size = arrays[number].shape[axis]
            if not isinstance(place, int) or size < 2:
                continue
            changed = list(arrays)
            others = np.roll(arrays[number], 1, axis)  # another place's numbers, at place 0 alone
            first = np.arange(size).reshape(-1, *[1] * (arrays[number].ndim - axis - 1)) == 0
            changed[number] = np.where(first, others, arrays[number])
            got = results_of(node, changed)[0]
            kept = (slice(None),) * place + (slice(1, None),)
            np.testing.assert_array_equal(got[kept], want[kept])
    # composites read an axis in several ways: a norm's weight lies along what its x is summed over
    if node.op.kind not in ("composite", "attention"):
        check_order(node, arrays, want, along)


def check_order(node, arrays, want, along):
    """Places that change their order in the operands change it in the result."""
    for place, size in enumerate(want.shape):
        turned = [
            np.roll(array, 1, axes.index(place)) if place in axes else array
            for array, axes in zip(arrays, along)
        ]
        if size > 1 and any(new is not old for new, old in zip(turned, arrays)):
            got = results_of(node, turned)[0]
            np.testing.assert_array_equal(got, np.roll(want, 1, place))


@pytest.mark.parametrize("op", BY_OP)
def test_ranges_hold_every_element(op):
    known = 0
    for sample in BY_OP[op]:
        node = node_of(sample)
        for number, result in enumerate(node.results):
            low, high = Ranges(Facts({})).of(result)
            if (low, high) != (None, None):
                known += 1
                got = results_of(node, inputs_of(sample))[number]
                assert got.size == 0 or (low <= got.min() and got.max() <= high)
    has_range = ("full", "iota", "dim_value", "argmax", "check_index", "lt", "isnan", "topk")
    assert known or op not in has_range


def test_ops_that_mix_along_an_axis_say_how():
    reasons = {
        (sample.op, along)
        for op in BY_OP
        for sample in of_one_dtype(op)
        for operand in Axes(Facts({})).of(node_of(sample))
        for along in operand
        if isinstance(along, str)
    }
    mixing = dict(itertools.chain(reasons))
    assert mixing["sum"] == "it reduces"
    assert mixing["matmul"] == "it sums over"
    assert mixing["cumsum"] == "it works along"
    assert mixing["gather"] == "it picks along"
    assert mixing["reshape"] == "it merges"
