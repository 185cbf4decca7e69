"""Graphs with regions and sizes that steps bind, built for the CPU and run, vs the reference."""

import numpy as np
import pytest

from tilewright.api.compile_graph import compile_graph
from tilewright.codegen.group import make_plan
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate as number
from tilewright.ir.dim import symbol
from tilewright.ir.errors import UnsupportedOp
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph
from tilewright.ir.op import OPS, op
from tilewright.ir.steps import Copy, LaunchStep, walk
from tilewright.ir.switches import switches
from tilewright.ir.target import cpu
from tilewright.ir.types import bool_, f32, i64
from tilewright.ir.verify import verify
from tilewright.passes.pipelines import dense
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.executable import Executable

N = symbol("n")


def builder(name="main") -> Builder:
    b = Builder(name)
    b.dim("n", 0, 64)
    return b


def part(name, shapes, body, dtype=f32) -> Graph:
    """A sub-graph over values of these shapes; a shape of None is a bool."""
    b = builder(name)
    inputs = [
        b.input(f"x{i}", () if s is None else s, bool_ if s is None else dtype)
        for i, s in enumerate(shapes)
    ]
    return b.graph(body(b, *inputs))


def swaps() -> Graph:
    """A loop whose carried values change places, one of them unread afterwards."""
    b = builder()
    x, y = b.input("x", (N, 3)), b.input("y", (N, 3))
    i, count = b.input("i", (), i64), b.input("count", (), i64)

    def condition():
        c = builder("condition")
        j = c.input("j", (), i64)
        for k in range(3):
            c.input(f"v{k}", (N, 3))
        return c.graph([c.lt(j, c.input("n", (), i64))])

    def body():
        c = builder("body")
        j = c.input("j", (), i64)
        u, v, w = (c.input(f"v{k}", (N, 3)) for k in range(3))
        c.input("n", (), i64)
        return c.graph([c.add(j, c.constant(1, i64)), v, w, c.add(u, c.mul(v, v))])

    out = b.while_loop(i, x, y, x, count, carried=4, condition=condition(), body=body())
    return b.graph([out[1], out[3], b.neg(out[3])])


def twice_and_argument() -> Graph:
    """Branches that return one value twice, an operand, and two operands in the other order."""
    b = builder()
    p, x, y = b.input("p", (), bool_), b.input("x", (N, 4)), b.input("y", (N, 4))

    def then(b, x, y):
        both = b.add(x, y)
        return both, both, y

    shapes = [(N, 4), (N, 4)]
    branches = {
        "then": part("then", shapes, then),
        "otherwise": part("otherwise", shapes, lambda b, x, y: (y, x, b.mul(x, y))),
    }
    a, c, d = b.cond(p, x, y, **branches)
    return b.graph([a, b.sub(c, d), d])


def views_and_weights() -> Graph:
    """Operands that are views, casts, and a weight that a product streams as well."""
    b = builder()
    p, x, w = b.input("p", (), bool_), b.input("x", (N, 48)), b.weight("w", (48, 48))
    shapes = [(48, N), (48, 48), (48,)]

    def multiply(b, x, w, row):
        return [b.add(b.matmul(w, x, transpose_w=False), b.reshape(row, shape=(48, 1)))]

    def scale(b, x, w, row):
        return [b.mul(x, b.reshape(row, shape=(48, 1)))]

    branches = {
        "then": part("then", shapes, multiply),
        "otherwise": part("otherwise", shapes, scale),
    }
    row = b.reshape(b.slice(w, axis=0, start=1, stop=2), shape=(48,))
    product = b.matmul(x, w, transpose_w=True)
    chosen = b.cond(p, b.transpose(product, perm=(1, 0)), w, row, **branches)
    return b.graph([chosen, product])


def nested() -> Graph:
    """A scan whose body branches and scans again, with what is carried among the stacked rows."""
    b = builder()
    xs, p = b.input("xs", (N, 5)), b.input("p", (N,), bool_)
    start = b.input("start", ())
    inner = part("inner", [(), ()], lambda b, c, x: (b.add(c, b.mul(x, x)), c))

    def body(b, c, p, x):
        low, rows = b.scan(c, x, carried=1, stacked=1, count=5, body=inner)
        other = part("keep", [(), ()], lambda b, low, c: (c,))
        take = part("take", [(), ()], lambda b, low, c: (b.mul(low, b.constant(0.5, f32)),))
        return b.cond(p, low, c, then=take, otherwise=other), rows, c

    c = builder("outer")
    carried, flag, row = c.input("c", ()), c.input("p", (), bool_), c.input("x", (5,))
    outer = c.graph(body(c, carried, flag, row))
    return b.graph(b.scan(start, p, xs, carried=1, stacked=2, count=N, body=outer))


def late_sizes() -> Graph:
    """Kernels over a size that a step binds, one of which reads nothing that was found."""
    b = builder()
    x = b.input("x", (N, 4))
    b.dim("found", lo=0)
    found = symbol("found")
    places = b.nonzero(x, binds=("found",))
    ramp = b.iota(length=found, start=0, step=1, dtype=i64)
    column = b.reshape(b.slice(places, axis=1, start=0, stop=1), shape=(found,))
    rows = b.gather(x, column, axis=0)
    probabilities = b.softmax(rows)
    total = b.sum(probabilities, axes=(0,))
    return b.graph([b.add(ramp, column), rows, total, b.matmul(rows, x, transpose_w=True)])


def late_inside() -> Graph:
    """A size that the body of a loop binds anew each time, and nobody outside sees."""
    b = builder()
    xs, start = b.input("xs", (N, 7)), b.input("start", ())
    c = builder("body")
    c.dim("here", lo=0)
    total, x = c.input("total", ()), c.input("x", (7,))
    found = c.nonzero(x, binds=("here",))
    at = c.cast(c.reshape(found, shape=(symbol("here"),)), dtype=f32)
    new = c.add(total, c.sum(c.mul(at, at), axes=(0,)))
    body = c.graph([new, c.cast(c.dim_value(value=symbol("here"), dtype=i64), dtype=f32)])
    return b.graph(b.scan(start, xs, carried=1, stacked=1, count=N, body=body))


GRAPHS = [swaps, twice_and_argument, views_and_weights, nested, late_sizes, late_inside]


def arrays_of(graph: Graph, rng, n: int, flag: bool):
    given = {}
    for value in graph.inputs:
        shape = [n if not isinstance(d, int) else d for d in value.shape]
        if value.dtype is bool_:
            given[value.name] = rng.integers(0, 2, shape).astype(bool) if shape else np.array(flag)
        elif value.dtype is i64:
            given[value.name] = np.array(3 * flag if value.name == "count" else 0)
        else:
            x = rng.standard_normal(shape).astype(np.float32)
            given[value.name] = np.where(rng.random(shape) < 0.5, x, np.float32(0))
    return given


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
def test_programs_compute_what_the_reference_does(make, rng):
    graph = make()
    verify(graph)
    weights = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.weights}
    with switches(check=2):  # the reference is the same after each pass
        made = compile_graph(graph, weights, dense(), cpu())
    exe = Executable(made.program, made.weights, CpuDevice())
    for n, flag in [(0, True), (1, False), (5, True), (64, True), (5, False)]:
        given = arrays_of(graph, rng, n, flag)
        expected, _ = evaluate(graph, given, weights)
        results = exe(*(given[v.name] for v in graph.inputs))
        for got, want in zip(results, expected, strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)


def test_what_a_size_is_for_comes_after_what_binds_it():
    graph = late_sizes()
    plan = make_plan(graph)
    verify(plan.graph)
    names = [node.op.name for node in plan.graph.nodes]
    assert names.index("nonzero") < names.index("iota")


def test_regions_that_do_not_run_at_once_share_memory():
    b = builder()
    p, x = b.input("p", (), bool_), b.input("x", (N, 64))

    def soft(b, x):
        return [b.matmul(b.softmax(x), b.full(value=0.5, shape=(64, 64), dtype=f32))]

    for _ in range(4):
        x = b.cond(
            p,
            x,
            then=part("then", [(N, 64)], soft),
            otherwise=part("otherwise", [(N, 64)], lambda b, x: [x]),
        )
    program = compile_graph(b.graph([x]), {}, dense(), cpu()).program
    # two results that take turns, and in each region the softmax
    assert number(program.arena_bytes, {"n": 64}) == 3 * 64 * 64 * 4
    steps = list(walk(program.steps))
    launches = [step for step in steps if isinstance(step, LaunchStep)]
    assert (len(program.kernels), len(launches)) == (2, 8), "regions share kernels"
    assert sum(isinstance(s, Copy) for s in steps) == 4, "only the branch that keeps x copies it"


def test_a_region_that_no_step_runs_is_told():
    try:

        @op(kind="region")
        def sometimes(x, *, body: Graph):
            """For this test."""
            return x

        sometimes.set_reference(lambda run, x, *, body: run(body, (x,))[0])
        b = builder()
        body = part("body", [(N, 3)], lambda b, x: [x])
        graph = b.graph([b.sometimes(b.input("x", (N, 3)), body=body)])
        with pytest.raises(UnsupportedOp, match="no step runs sometimes"):
            compile_graph(graph, {}, dense(), cpu())
    finally:
        del OPS["sometimes"]
