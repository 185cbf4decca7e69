"""Sort parts: rows shared among threads, or one row after another by all of them."""

from ...ir.dim import product
from ...ir.types import bool_
from ..loops import Element, LoopKernel
from ..templates.sort import Sort
from . import dims
from .elements import Scope, decode
from .sweep import store_sink, sweep, value_sink

HEAP_SHARE = 8  # the first of a row are picked out where they are at most this part of it


def emit_sort(kernel: LoopKernel, part: Sort, name: str) -> list[str]:
    """A function that computes the part."""
    scope = Scope(kernel, (*part.rows, part.axis, part.rank))
    axis, rank = dims.name(part.axis.name), dims.name(part.rank.name)
    order = "true" if part.is_descending else "false"
    key, place = _types(part)

    def fill(scope: Scope, element: Element) -> None:
        value = scope.emit(element)
        scope.write(f"all[{axis}] = {{tw_key<{order}>({_keyed(scope, part, value)}), (I){axis}}};")

    with scope.function(name):
        scope.write(
            f"typedef {name}_I I;",
            f"typedef TwItem<{name}_K, I> Item;",
            f"const {name}_sizes s(d, team->nthreads);",
            "const int64_t n = s.n, keep = s.keep;",
            "const bool wide = s.wide, picks = s.picks;",
            "const int64_t part = wide ? team->tid : 0, parts = wide ? team->nthreads : 1;",
            "int64_t* const counts = (int64_t*)(wide ? team->shared : team->scratch);",
            "Item *const all = (Item*)(counts + parts * TW_DIGITS), *const other = all + n;",
            "const int64_t lo = tw_cut(n, part, parts), hi = tw_cut(n, part + 1, parts);",
            "const int64_t first = wide ? 0 : tw_cut(s.rows, team->tid, team->nthreads);",
            "const int64_t last = wide ? s.rows : tw_cut(s.rows, team->tid + 1, team->nthreads);",
        )
        head = "for (int64_t row = first; row < last; ++row) {"
        with scope.block(head, known=(a.name for a in part.rows)):
            scope.write(*decode(part.rows, "row"))
            sweep(scope, part.axis.name, "lo", "hi", [value_sink(part.value, fill)])
            scope.write(
                "if (wide) tw_barrier(team);",
                "const Item* const found = picks",
                "    ? tw_first(all, n, keep, other, counts, team, part, parts)",
                "    : tw_sort(all, other, n, counts, team, part, parts);",
                "if (wide) tw_barrier(team);",
                "const int64_t from = tw_cut(keep, part, parts);",
                "const int64_t to = tw_cut(keep, part + 1, parts);",
            )
            head = f"for (int64_t {rank} = from; {rank} < to; ++{rank}) {{"
            with scope.block(head, known=(part.axis.name, part.rank.name)):
                scope.write(f"const int64_t {axis} = (int64_t)found[{rank}].at;")
                for store in part.stores:
                    store_sink(store).write(scope)
            scope.write("if (wide) tw_barrier(team);")
    return [
        f"typedef {key} {name}_K;",
        f"typedef {place} {name}_I;",
        *_sizes(kernel, part, name),
        *scope.lines,
    ]


def sort_scratch(kernel: LoopKernel, part: Sort, name: str) -> list[str]:
    """A row's items twice, and counts of digits, of the team or of each thread."""
    return [
        f"const {name}_sizes s(d, nthreads);",
        "const int64_t counts = TW_DIGITS * (int64_t)sizeof(int64_t);",
        f"const int64_t items = 2 * s.n * (int64_t)sizeof(TwItem<{name}_K, {name}_I>);",
        "if (s.wide) need[1] = tw_greater(need[1], nthreads * counts + items);",
        "else need[0] = tw_greater(need[0], counts + items);",
    ]


def _sizes(kernel: LoopKernel, part: Sort, name: str) -> list[str]:
    """What is decided by the sizes alone."""
    return [
        f"struct {name}_sizes {{",
        "    int64_t rows, n, keep;",
        "    bool wide, picks;",
        f"    {name}_sizes(const int64_t* d, int64_t nthreads) {{",
        *("        " + line for line in dims.given(kernel.symbols)),
        f"        rows = {dims.text(product(a.extent for a in part.rows))};",
        f"        n = {dims.text(part.axis.extent)};",
        f"        keep = {dims.text(part.rank.extent)};",
        "        wide = rows < nthreads && n > 4096;",
        "        // a heap for each of those that share a row lies in the room of a row",
        f"        picks = keep * {HEAP_SHARE} <= n && keep * (wide ? nthreads : 1) <= n;",
        "    }",
        "};",
        "",
    ]


def _types(part: Sort) -> tuple[str, str]:
    """Of a key, and of a place."""
    key = "uint64_t" if part.value.dtype.bits == 64 else "uint32_t"
    extent = part.axis.extent
    is_short = isinstance(extent, int) and extent < 2**32
    return key, "uint32_t" if is_short else "uint64_t"


def _keyed(scope: Scope, part: Sort, value: str) -> str:
    """The element as one of the types that have keys."""
    dtype = part.value.dtype
    return value if dtype != bool_ and (dtype.is_float or dtype.bits >= 32) else f"(int32_t){value}"
