"""Programs of steps of every kind, written by hand."""

from tilewright.ir.dim import Symbol, symbol, symbols_of
from tilewright.ir.program import Buffer, Kernel, Program
from tilewright.ir.steps import (
    BindSize,
    Choice,
    Cond,
    Copy,
    LaunchStep,
    LibraryCall,
    ScanLoop,
    While,
    late_symbols,
)
from tilewright.ir.types import TensorType, bool_, f32, i64

SOURCES = {
    "add": """
        for (int64_t i = 0; i < d[0]; ++i)
            ((float*)p[2])[i] = ((const float*)p[0])[i] + ((const float*)p[1])[i];""",
    "less": "*(bool*)p[2] = *(const float*)p[0] < *(const float*)p[1];",
    "ends": """
        for (int64_t i = 0; i < d[0]; ++i)
            ((int64_t*)p[1])[i] = ((const int64_t*)p[0])[i] + d[0];""",
}

N, U, I = symbol("n"), symbol("u"), symbol("i")
SYMBOLS = {"n": Symbol("n", 0, 100), "u": Symbol("u", 0), "i": Symbol("i", 0)}
X_TO_Y = {"x": ((N,), f32, "input"), "y": ((N,), f32, "output")}


def make(library, buffers, steps, *, inputs="x", outputs="y", arena=1 << 16) -> Program:
    """buffers: name -> (shape, dtype, role or offset)."""
    made = {
        name: Buffer(name, TensorType(shape, dtype), "temp", place)
        if not isinstance(place, str)
        else Buffer(name, TensorType(shape, dtype), place)
        for name, (shape, dtype, place) in buffers.items()
    }
    kernels = {n: Kernel(n, "cpp", n, "", "lib", "pointwise") for n in SOURCES}
    names = tuple(inputs.split()), tuple(outputs.split())
    blobs = {"lib": library}
    used = late_symbols(steps).union(*(symbols_of(d) for b in made.values() for d in b.type.shape))
    symbols = {name: s for name, s in SYMBOLS.items() if name in used}
    return Program("p", "cpu", symbols, made, *names, kernels, tuple(steps), arena, blobs)


def launch(kernel, *args, writes):
    return LaunchStep(f"{kernel} {writes}", (Choice(kernel, 0, None, args, writes=(writes,)),))


def nonzero_program(library):
    """y = nonzero(x) + count: memory for y and what it is made of is there once the count is."""
    buffers = {
        "x": ((N,), f32, "input"),
        "at": ((U, 1), i64, None),
        "y": ((U,), i64, "output"),
    }
    steps = [
        LibraryCall("find", "numpy.nonzero", ("x",), ("at",), ("u",)),
        launch("ends", "at", "y", U, writes="y"),
    ]
    return make(library, buffers, steps, outputs="y y")


def bind_program(library):
    """y = x[:u] where u is what the kernel makes of `count`: count + 1."""
    buffers = {
        "x": ((N,), f32, "input"),
        "count": ((), i64, "input"),
        "more": ((), i64, 0),
        "y": ((U,), f32, "output"),
    }
    steps = [
        launch("ends", "count", "more", 1, writes="more"),
        BindSize("size", "more", "u"),
        Copy("take", "x", "y", 4 * U),
    ]
    return make(library, buffers, steps, inputs="x count")


def cond_program(library):
    """y = x + x where p, else x."""
    buffers = {"p": ((), bool_, "input"), "x": ((N,), f32, "input"), "y": ((N,), f32, "output")}
    then = (launch("add", "x", "x", "y", N, writes="y"),)
    otherwise = (Copy("keep", "x", "y", 4 * N),)
    return make(library, buffers, [Cond("if", "p", then, otherwise)], inputs="p x")


def while_program(library):
    """y = x; while y < limit: y = y + y."""
    buffers = {
        "x": ((), f32, "input"),
        "limit": ((), f32, "input"),
        "go": ((), bool_, 0),
        "twice": ((), f32, 64),
        "y": ((), f32, "output"),
    }
    test = (launch("less", "y", "limit", "go", writes="go"),)
    body = (launch("add", "y", "y", "twice", 1, writes="twice"), Copy("next", "twice", "y", 4))
    steps = [Copy("begin", "x", "y", 4), While("loop", "go", test, body)]
    return make(library, buffers, steps, inputs="x limit")


def scan_program(library):
    """y = cumsum(x, axis 0) of x [n, 2], last = y[-1]."""
    buffers = {
        "x": ((N, 2), f32, "input"),
        "row": ((2,), f32, 0),
        "sum": ((2,), f32, 64),
        "last": ((2,), f32, "output"),
        "y": ((N, 2), f32, "output"),
    }
    body = (
        Copy("slice", "x", "row", 8, source_offset=8 * I),
        launch("add", "last", "row", "sum", 2, writes="sum"),
        Copy("carry", "sum", "last", 8),
        Copy("stack", "sum", "y", 8, target_offset=8 * I),
    )
    zero = Copy("begin", "zeros", "last", 8)
    steps = [zero, ScanLoop("loop", "i", N, body)]
    buffers["zeros"] = ((2,), f32, "input")
    return make(library, buffers, steps, inputs="zeros x", outputs="last y")
