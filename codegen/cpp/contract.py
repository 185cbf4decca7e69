"""Contractions: a struct with the prologues and the epilogue, run by tw_contract.h.

Sums in f64, and of integers that take more than 16 bits, are a plain loop, one after another.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple

from ...ir.dim import Dim, ceildiv, divide_exactly, floordiv, mod, product, substitute
from ...ir.encoding import PANEL
from ...ir.errors import BuildError
from ...ir.indexing import coefficient_of
from ...ir.types import DType, f32, i8, i16, u8
from ..elements import index_facts, loads_of
from ..loops import Cast, Contract, Element, Load, LoopKernel, accumulator_of, tile_dtype
from ..templates.template import Bucket, clip
from . import dims
from .contract_plain import emit_plain, unpack_loads
from .elements import Scope, decode, pointer_type, unit_axes, value_type
from .reduce import buffers, combines, declare_states, sweep_row
from .schedules import FixedSchedule, TileSchedule, fixed_buckets
from .sweep import buffer_sink, store_sink, sweep

BLOCK = 256  # TW_KB
ROWS = ((0, 1), (2, 16), (17, 128), (129, None))  # of x, that may have schedules of their own


def tiled(part: Contract) -> DType | None:
    """What tiles of x are kept in; None where the part is a plain loop."""
    kept = tile_dtype(part.x_dtype, part.w_dtype)
    # of several weights w_dtype says what the first is; statistics are f32
    return None if kept == i16 and (part.stats or len(part.ws) > 1) else kept


def is_narrow(kernel: LoopKernel, part: Contract) -> bool:
    """Whether sums along k cost less than a panel, most of which would be zeros.

    In cycles a row of x: k / 2 for a panel of 16 columns, k for one of 32; for a column k / 32, and
    4 for adding up its lanes.
    """
    n, k = part.n.extent, part.k.extent
    if tiled(part) != f32 or part.group is not None or not isinstance(n, int) or n > PANEL:
        return False
    if not isinstance(k, int) or all(direct_weight(kernel, part, w) for w in part.ws):
        return False
    return n * (k + 128) < (16 if n <= 16 else 32) * k


def contract_buckets(kernel: LoopKernel) -> tuple[Dim, list[Bucket]]:
    """By the rows of x; of a part that is a plain loop nothing is chosen."""
    (part,) = kernel.parts
    if tiled(part) is None:
        return fixed_buckets(kernel)
    table: list[Bucket] = [(lo, hi, TileSchedule()) for lo, hi in ROWS]
    return part.m.extent, clip(table, index_facts(kernel), part.m.extent)


def emit_contract(
    kernel: LoopKernel, part: Contract, name: str, schedule: TileSchedule | FixedSchedule
) -> list[str]:
    """A function that computes the part."""
    if isinstance(schedule, FixedSchedule):
        return emit_plain(kernel, part, name)
    return _Tiled(kernel, part, name, schedule).lines()


def contract_scratch(
    kernel: LoopKernel, part: Contract, name: str, schedule: TileSchedule | FixedSchedule
) -> list[str]:
    """Panels of x and w, and sums."""
    if isinstance(schedule, FixedSchedule):
        return []
    sizes = (product(a.extent for a in part.batch), part.m.extent, part.n.extent, part.k.extent)
    packed = all(direct_weight(kernel, part, w) is not None for w in part.ws)
    narrow = is_narrow(kernel, part)
    counts = f"{len(part.ws)}, {len(part.stats)}, {str(packed).lower()}, {str(narrow).lower()}"
    name = "tw_contract_need"
    if part.group is not None:
        name, sizes = "tw_grouped_need", (part.group.axis.extent, *sizes[1:])
    call = ", ".join(dims.text(s) for s in sizes)
    return [f"{name}<{_tiling(schedule)}>({call}, {counts}, nthreads, need);"]


def _tiling(schedule: TileSchedule) -> str:
    """The type of tw_contract.h that is the schedule."""
    return f"TwTiling<{', '.join(map(str, astuple(schedule)))}>"


def direct_weight(kernel: LoopKernel, part: Contract, w: Element) -> tuple[int, Dim] | None:
    """(parameter, first panel) when `w` is panels of a packed weight just as they lie."""
    kept = w.dtype
    while isinstance(w, Cast) and (
        w.arg.dtype.is_float == w.dtype.is_float or (w.arg.dtype, w.dtype) == (i8, f32)
    ):
        w = w.arg
    if not isinstance(w, Load) or not kernel.params[w.param].encoding.is_panel or w.indirect:
        return None
    # codes that floats meet have panels of their own (encodings.py)
    is_mixed = w.dtype.is_float != kept.is_float
    if is_mixed and kernel.params[w.param].encoding.order != "panel32":
        return None
    *_, rows, k = kernel.params[w.param].type.shape
    n_factor = coefficient_of(w.offset, part.n.name)
    k_factor = coefficient_of(w.offset, part.k.name)
    if (n_factor, k_factor) != (k, 1) or part.k.extent != k:
        return None
    start = substitute(w.offset, {part.n.name: 0, part.k.name: 0})
    matrix = divide_exactly(start, rows * k)
    if matrix is not None:
        return w.param, matrix * ceildiv(rows, PANEL)
    # inside a matrix that is not padded, panels lie as its rows do
    if rows % PANEL or mod(start, PANEL * k) != 0:
        return None
    return w.param, floordiv(start, PANEL * k)


class _Tiled:
    def __init__(self, kernel: LoopKernel, part: Contract, name: str, schedule: TileSchedule):
        self.kernel, self.part, self.name, self.schedule = kernel, part, name, schedule
        # a group's rows meet one matrix, as those of a batch item do
        self.batch = part.batch if part.group is None else (part.group.axis,)
        self.outer = frozenset((*(a.name for a in self.batch), part.m.name))
        self.axes = (*self.batch, part.m, part.n, part.k)
        self.direct = [direct_weight(kernel, part, w) for w in part.ws]
        self.packed = all(d is not None for d in self.direct)
        kinds = {kernel.params[d[0]].type.dtype.name for d in self.direct if d is not None}
        if self.packed and len(kinds) > 1:
            raise BuildError(f"weights of one contraction have dtypes {', '.join(sorted(kinds))}")
        self.kept = tiled(part) or f32
        orders = {kernel.params[d[0]].encoding.order for d in self.direct if d is not None}
        if self.packed and orders == {"panel32q"}:
            self.kept, kinds = u8, {"u8"}
        elif self.packed and self.kept == f32 and kinds == {"i8"}:
            kinds = {"codes"}
        self.narrow = is_narrow(kernel, part)
        self.micro = f"tw_micro_{kinds.pop() if self.packed else self.kept}"

    def lines(self) -> list[str]:
        body = [*self.fields(), *self.groups(), *self.fill(), *self.weights(), *self.expect()]
        body += self.finish()
        run = "tw_contract" if self.part.group is None else "tw_grouped"
        return [
            *self.combines(),
            f"struct {self.name}_s {{",
            *("    " + line for line in body),
            "};",
            "",
            f"static void {self.name}(TW_ARGS) {{",
            f"    {self.name}_s s;",
            *(f"    {line}" for line in self.setup()),
            f"    {run}(s, team);",
            "}",
        ]

    def combines(self) -> list[str]:
        part = self.part
        reductions = (*part.stats, *(r for phase in part.phases for r in phase))
        return combines(self.kernel, reductions, self.name)

    def fields(self) -> list[str]:
        part = self.part
        lines = [
            f"static constexpr int WEIGHTS = {len(part.ws)}, STATS = {len(part.stats)};",
            f"static constexpr bool PACKED = {str(self.packed).lower()};",
            f"static constexpr bool NARROW = {str(self.narrow).lower()};",
            f"static constexpr bool IS_F32 = {str(self.micro == 'tw_micro_f32').lower()};",
            f"static constexpr bool IS_I8 = {str(self.micro == 'tw_micro_i8').lower()};",
            f"static constexpr bool IS_BYTES = {str(self.micro == 'tw_micro_u8').lower()};",
            f"typedef {_tiling(self.schedule)} Tiling;",
            f"typedef {value_type(self.kept)} X;",
            f"typedef {value_type(accumulator_of(part.x_dtype))} Sum;",
            "int64_t batches, M, N, K;",
        ]
        lines += [f"{pointer_type(param)} p{i};" for i, param in enumerate(self.kernel.params)]
        lines += [f"int64_t {dims.name(s)};" for s in self.kernel.symbols]
        lines.append(f"TW_INLINE auto micro() {{ return {self.micro}; }}")
        return lines

    def setup(self) -> list[str]:
        params = enumerate(self.kernel.params)
        lines = [f"s.p{i} = ({pointer_type(param)})p[{i}];" for i, param in params]
        for i, symbol in enumerate(self.kernel.symbols):
            variable = dims.name(symbol)
            lines.append(f"const int64_t {variable} = s.{variable} = d[{i}];")
        part = self.part
        for field, extent in (
            ("batches", product(a.extent for a in self.batch)),
            ("M", part.m.extent),
            ("N", part.n.extent),
            ("K", part.k.extent),
        ):
            lines.append(f"s.{field} = {dims.text(extent)};")
        return lines

    def batch_lines(self) -> list[str]:
        batch = self.batch
        return unit_axes(batch) + decode([a for a in batch if a.extent != 1], "b")

    @contextmanager
    def rows(self, scope: Scope, *head: str) -> Iterator[None]:
        """A function of the struct, and in it the loop over rows of a block of x."""
        with (
            scope.block(*head),
            scope.block("for (int64_t r = r0; r < r1; ++r) {", known=self.outer),
        ):
            scope.write(*self.place())
            yield

    def place(self) -> list[str]:
        """The axes of a row."""
        row = "m0 + r" if self.part.group is None else "rows[m0 + r]"
        return [*self.batch_lines(), f"const int64_t {dims.name(self.part.m.name)} = {row};"]

    def groups(self) -> list[str]:
        """Which group a row is in."""
        group, m = self.part.group, self.part.m
        if group is None:
            return []
        scope = Scope(self.kernel, (m,))
        with scope.block("int64_t group(int64_t m) const {", known=[m.name]):
            scope.write(f"const int64_t {dims.name(m.name)} = m;")
            scope.write(f"return {scope.emit(group.index)};")
        return ["const int64_t* rows;", *scope.lines]

    # ---- prologue ----

    def fill(self) -> list[str]:
        part, k = self.part, self.part.k.name
        scope = Scope(self.kernel, self.axes)
        head = (
            "void fill(int64_t b, int64_t m0, int64_t r0, int64_t r1, int64_t mc, X* a,",
            "          float* stat) const {",
        )
        with self.rows(scope, *head):
            for phase in part.phases:
                sweep_row(scope, part.k, phase, self.name, self.outer)
            states = declare_states(scope, part.stats, self.name)
            # one block of a known size: its loops are of known lengths
            is_short = isinstance(part.k.extent, int) and part.k.extent <= BLOCK
            lo, hi = ("0", str(part.k.extent)) if is_short else ("k0", "k1")
            with scope.block("for (int64_t k0 = 0; k0 < K; k0 += TW_KB) {"):
                scope.write("const int64_t k1 = tw_lesser(k0 + TW_KB, K);")
                scope.write("X* const to = a + (k0 / TW_KB * mc + r) * TW_KB - k0;")
                sinks, adds = buffers(scope, k, lo, hi, part.stats, states)
                sinks.append(buffer_sink(f"to[{dims.name(k)}]", part.x, self.kept))
                sweep(scope, k, lo, hi, sinks)
                scope.write(*adds)
            for i, state in enumerate(states):
                scope.write(f"stat[{i} * mc + r] = (float){state}.get();")
        return scope.lines

    def weights(self) -> list[str]:
        return self.panel_pointers() if self.packed else self.pack()

    def panel_pointers(self) -> list[str]:
        text = ["const void* weight(int i, int64_t b, int64_t panel, int64_t k) const {"]
        text += ["    " + line for line in self.batch_lines()]
        together = 4 // self.kept.nbytes  # of k, in a line of a panel
        lines = f"((K + {together - 1}) / {together} * {together})" if together > 1 else "K"
        for i, (number, first) in enumerate(self.direct):
            last = i == len(self.direct) - 1
            test = "" if last else f"if (i == {i}) "
            line = f"((panel + {dims.text(first)}) * {lines} + k) * TW_PANEL"
            text.append(f"    {test}return p{number} + {line};")
        return [*text, "}"]

    def pack(self) -> list[str]:
        count, is_short = "(k1 - k0) * TW_PANEL", "n1 - n0 < TW_PANEL"
        if self.kept == i16:  # whole pairs
            count, is_short = "(k1 - k0 + 1) / 2 * 2 * TW_PANEL", f"{is_short} || (k1 - k0) % 2"
        if self.narrow:
            count, is_short = "N * tw_narrow_row(K)", "K < tw_narrow_row(K)"
        lines = [
            "void pack(int i, int64_t b, int64_t n0, int64_t n1, int64_t k0, int64_t k1,",
            "          X* out) const {",
            *("    " + line for line in self.batch_lines()),
            f"    if ({is_short})",
            f"        for (int64_t j = 0; j < {count}; ++j) out[j] = 0;",
        ]
        for i, w in enumerate(self.part.ws):
            lines.append(f"    if (i == {i}) {{")
            lines += ["        " + line for line in self.pack_one(w)]
            lines.append("    }")
        return [*lines, "}"]

    def pack_one(self, w: Element) -> list[str]:
        n, k = self.part.n.name, self.part.k.name
        scope = Scope(self.kernel, self.axes)
        w = unpack_loads(self.kernel, w, scope.facts)
        if (place := self.lies_along_k(w)) is not None:
            param, *rest = place
            start, apart = map(dims.text, rest)
            first = f"p{param} + {start} + n0 * {apart} + k0"
            return [f"tw_pack_rows({first}, {apart}, n1 - n0, k1 - k0, out);"]
        inner, outer = (n, k) if _unit_axis(w, n) else (k, n)
        bounds = {n: ("n0", "n1"), k: ("k0", "k1")}
        at, column = f"{dims.name(k)} - k0", f"{dims.name(n)} - n0"
        place = f"out[({at}) * TW_PANEL + {column}]"
        if self.narrow:
            place = f"out[({column}) * tw_narrow_row(K) + {at}]"
        if self.kept == i16:
            place = f"out[(({at}) / 2 * TW_PANEL + {column}) * 2 + ({at}) % 2]"
        batch = (a.name for a in self.batch)
        with scope.loop(outer, *bounds[outer], known=batch):
            sweep(scope, inner, *bounds[inner], [buffer_sink(place, w, self.kept)])
        return scope.lines

    def lies_along_k(self, w: Element) -> tuple[int, Dim, Dim] | None:
        """(parameter, first element, elements from row to row) of float32 rows along k."""
        n, k = self.part.n.name, self.part.k.name
        if self.narrow or not isinstance(w, Load) or w.indirect:
            return None
        apart = coefficient_of(w.offset, n)
        if self.kernel.params[w.param].type.dtype != f32 or coefficient_of(w.offset, k) != 1:
            return None
        return None if apart is None else (w.param, substitute(w.offset, {n: 0, k: 0}), apart)

    # ---- epilogue ----

    def expect(self) -> list[str]:
        """Memory of a panel's results and what is read beside them, where no division finds it."""
        part, n, m = self.part, self.part.n.name, self.part.m.name
        places = {(e.param, e.offset): 0 for e in loads_of(part.stores) if not e.indirect}
        places |= {(s.param, s.offset): 1 for s in part.stores}
        lines = [
            f"tw_expect<{is_written}>(p{param} + {dims.text(offset)});"
            for (param, offset), is_written in places.items()
            if coefficient_of(offset, n) == 1 and coefficient_of(offset, m) not in (None, 0)
        ]
        scope = Scope(self.kernel, self.axes)
        head = "void expect(int64_t b, int64_t m0, int64_t r0, int64_t r1, int64_t n0) const {"
        with scope.block(head):
            if lines and all(axis.extent == 1 for axis in part.batch):
                with scope.block("for (int64_t r = r0; r < r1; ++r) {"):
                    scope.write(*self.place(), f"const int64_t {dims.name(n)} = n0;", *lines)
        return scope.lines

    def finish(self) -> list[str]:
        part = self.part
        n = part.n.name
        refs = {f"acc{i}": (f"c{i}[{dims.name(n)}]", self.outer | {n}) for i in range(len(part.ws))}
        refs |= {s.name: (f"stat[{i} * mc + r]", self.outer) for i, s in enumerate(part.stats)}
        scope = Scope(self.kernel, self.axes, refs)
        head = (
            "void finish(int64_t b, int64_t m0, int64_t r0, int64_t r1, int64_t n0, int64_t n1,",
            "            const Sum* c, int64_t plane, int64_t ldc, const float* stat,",
            "            int64_t mc) const {",
        )
        with self.rows(scope, *head):
            for i in range(len(part.ws)):
                scope.write(f"const Sum* const c{i} = c + {i} * plane + (r - r0) * ldc - n0;")
            sweep(scope, n, "n0", "n1", [store_sink(s) for s in part.stores])
        return scope.lines


def _unit_axis(element: Element, axis: str) -> bool:
    """Whether every load steps by one element along `axis`, or by none."""
    return all(coefficient_of(load.offset, axis) in (0, 1) for load in loads_of(element))
