"""Element expressions as C++ statements, each placed in the outermost loop where it is known."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from ...ir.abi import RECORD_WORDS
from ...ir.dim import CALLS, Atom, Dim, DimCall, map_atoms, symbol, symbols_of
from ...ir.errors import BuildError
from ...ir.indexing import simplified
from ...ir.types import DType, TensorType, bool_, f32
from ..elements import Numbering, children, index_facts
from ..loops import (
    Apply,
    Axis,
    Cast,
    Check,
    Const,
    Element,
    Index,
    Load,
    LoopKernel,
    Param,
    Ref,
    Select,
    Store,
)
from . import dims
from .scalars import NARROW, VALUE_TYPES, apply, cast, constant, convert


def value_type(dtype: DType) -> str:
    """The C++ type that elements of `dtype` are computed in."""
    return VALUE_TYPES[dtype.name]


def stored_type(type: TensorType) -> str:
    """The C++ type of a buffer's elements."""
    return NARROW.get(type.dtype.name, value_type(type.dtype))


def pointer_type(param: Param) -> str:
    """The C++ type of a pointer to a parameter's elements."""
    return f"{'' if param.is_written else 'const '}{stored_type(param.type)}*"


@dataclass
class Level:
    """One nesting level of the code being made: what is known there, what was computed there."""

    known: frozenset[str]  # axes, indirect indices and refs that have a value here
    lines: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)  # number of an element -> its variable
    indirect: dict[tuple[str, int], str] = field(default_factory=dict)
    quotients: dict[DimCall, Dim] = field(default_factory=dict)  # and rests: their variables
    hoists: bool = True  # False: a branch that may not be taken; no element leaves it
    branches_at: int | None = None  # where an if began whose else is still being written


class Scope:
    """Emits elements into nested levels. `axes` are those that loops of this part run over.

    `refs` gives the C++ text of named results and what each depends on. `assumed` holds conditions
    of Selects that are decided here, (lhs, rhs) -> truth.
    """

    def __init__(
        self,
        kernel: LoopKernel,
        axes: Sequence[Axis] = (),
        refs: Mapping[str, tuple[str, frozenset[str]]] = {},
    ):
        self.kernel = kernel
        self.axes = frozenset(a.name for a in axes)
        self.refs = dict(refs)
        self.numbering = Numbering()
        self.levels: list[Level] = [Level(frozenset())]
        self.assumed: dict[tuple[Dim, Dim], bool] = {}
        self.facts = index_facts(kernel, axes)
        self.count = 0

    # ---- levels ----

    @contextmanager
    def block(self, *head: str, known: Iterable[str] = (), hoists: bool = False) -> Iterator[None]:
        """A nested block behind `head`, in which `known` have values. It ends with a brace."""
        self.levels.append(Level(self.levels[-1].known.union(known), hoists=hoists))
        yield
        lines = self.levels.pop().lines
        self.write(*head, *("    " + x for x in lines), "}")

    def branches(self, test: str) -> Iterator[bool]:
        """The two blocks of an if, one after the other: whether the test holds there."""
        level = self.levels[-1]
        level.branches_at = len(level.lines)
        for head, truth in ((f"if ({test}) {{", True), ("else {", False)):
            with self.block(head):
                yield truth
        level.branches_at = None

    def loop(
        self,
        axis: str,
        lo: str,
        hi: str,
        *before: str,
        known: Iterable[str] = (),
        hoists: bool = False,
    ) -> AbstractContextManager[None]:
        """A loop over [lo, hi) of an axis, behind `before`, in which `known` have values too."""
        at = dims.name(axis)
        head = f"for (int64_t {at} = {lo}; {at} < {hi}; ++{at}) {{"
        return self.block(*before, head, known=(axis, *known), hoists=hoists)

    @contextmanager
    def function(self, name: str, units: Iterable[Axis] = ()) -> Iterator[None]:
        """The function of a part, with its buffers, dims and those of `units` of extent 1."""
        with self.block(f"static void {name}(TW_ARGS) {{"):
            self.write(*declarations(self.kernel), *unit_axes(units))
            yield

    def shared(
        self, item: str, count: str, known: Iterable[str] = ()
    ) -> AbstractContextManager[None]:
        """A loop over items that the threads share out; its first lines make `known` known."""
        self.write(
            f"const int64_t first = tw_cut({count}, team->tid, team->nthreads);",
            f"const int64_t last = tw_cut({count}, team->tid + 1, team->nthreads);",
        )
        return self.block(f"for (int64_t {item} = first; {item} < last; ++{item}) {{", known=known)

    @property
    def lines(self) -> list[str]:
        """What was written, once all blocks have ended."""
        return self.levels[0].lines

    def write(self, *lines: str) -> None:
        """Lines of the innermost block."""
        self.levels[-1].lines += lines

    def fresh(self, stem: str = "x") -> str:
        """A variable name not used yet."""
        self.count += 1
        return f"{stem}{self.count}"

    def needs(self, element: Element) -> frozenset[str]:
        """Axes that the element's value depends on, through refs too. Symbols are always known."""
        out: set[str] = set()
        for dep in self.numbering.needs(element):
            if dep.startswith("ref "):
                out |= self.refs[dep[4:]][1]
            elif dep in self.axes:
                out.add(dep)
        return frozenset(out)

    def _level_for(self, element: Element, operands: Sequence[Element] = ()) -> Level:
        # the outermost block that knows all of it, but never out of a branch, nor out of the block
        # of an operand: that of a Select stays where the Select was met
        needs = self.needs(element)
        least = max(map(self._home, operands), default=0)
        at = len(self.levels) - 1
        while at > least and self.levels[at].hoists and needs <= self.levels[at - 1].known:
            at -= 1
        return self.levels[at]

    def _home(self, element: Element) -> int:
        """The block in which an element that was emitted has its variable; 0 where it has none."""
        number = self.numbering.number(self.decided(element))
        return next((i for i, level in enumerate(self.levels) if number in level.names), 0)

    # ---- elements ----

    def emit(self, element: Element) -> str:
        """A C++ expression (a variable or a literal) with the element's value."""
        element = self.decided(element)
        if isinstance(element, Const):
            return constant(element.value, element.dtype)
        number = self.numbering.number(element)
        for level in self.levels:
            if number in level.names:
                return level.names[number]
        if isinstance(element, Ref):
            return self.refs[element.name][0]
        if isinstance(element, Select):
            return self._select(element, number)
        text = self._expression(element)
        level = self._level_for(element, children(element))
        variable = self.fresh()
        level.lines.append(f"const {value_type(element.dtype)} {variable} = {text};")
        level.names[number] = variable
        return variable

    @contextmanager
    def assuming(self, condition: tuple[Dim, Dim], truth: bool) -> Iterator[None]:
        """While it is decided whether lhs < rhs in Selects."""
        before = self.assumed
        self.assumed = {**before, condition: truth}
        yield
        self.assumed = before

    def decided(self, element: Element) -> Element:
        """The branch taken, where a Select's condition is assumed."""
        while isinstance(element, Select) and (element.lhs, element.rhs) in self.assumed:
            element = element.then if self.assumed[element.lhs, element.rhs] else element.other
        return element

    def _expression(self, e: Element) -> str:
        match e:
            case Index():
                return f"({value_type(e.dtype)}){self.offset(e.value, e.indirect)}"
            case Load():
                return self.load(e)
            case Apply():
                args = tuple(self.decided(a) for a in e.args)
                return apply(e.fn, args, [self.emit(a) for a in args], e.dtype)
            case Cast():
                arg = self.decided(e.arg)
                return cast(self.emit(arg), arg, e.to)
            case Check():
                return self._check(e)
        raise BuildError(f"{type(e).__name__} is no element")

    def _check(self, e: Check) -> str:
        arg = self.emit(e.arg)
        record = f"p{self.kernel.records} + {RECORD_WORDS * e.number}"
        if e.size is None:
            return f"tw_divisor({arg}, {record})"
        return f"tw_index<{str(e.wraps).lower()}>({arg}, {self.dim(e.size)}, {record})"

    def load(self, e: Load) -> str:
        """The widened element of a buffer."""
        type = self.kernel.params[e.param].type
        return widen(f"p{e.param}[{self.offset(e.offset, e.indirect)}]", type.dtype)

    def offset(self, offset: Dim, indirect: tuple[tuple[str, Element], ...]) -> str:
        """A C++ expression for a dim whose indirect indices are computed first."""
        for name, element in indirect:
            self._indirect(name, element)
        return self.dim(offset)

    def dim(self, dim: Dim) -> str:
        """A dim as a C++ expression, given what is known of the axes here.

        Quotients and rests are computed in the outermost block that knows their axes, where they
        cannot be by zero.
        """
        return dims.text(map_atoms(simplified(dim, self.facts), self._atom))

    def _atom(self, atom: Atom) -> Dim:
        if isinstance(atom, str):
            return symbol(atom)
        call = CALLS[atom.op](*(map_atoms(arg, self._atom) for arg in atom.args))
        of, by = (symbols_of(arg) - set(self.kernel.symbols) for arg in atom.args)
        is_safe = atom.op in ("floordiv", "mod") and not by
        is_safe = is_safe and (self.facts.bounds(atom.args[1])[0] or 0) >= 1
        level = next((level for level in self.levels if of and of <= level.known), None)
        if not is_safe or level is None:
            return call
        if atom not in level.quotients:
            variable = self.fresh("at")
            line = f"const int64_t {dims.name(variable)} = {dims.text(call)};"
            if level.branches_at is None:
                level.lines.append(line)
            else:
                level.lines.insert(level.branches_at, line)
                level.branches_at += 1
            level.quotients[atom] = symbol(variable)
        return level.quotients[atom]

    def _indirect(self, name: str, element: Element) -> None:
        # The index is a variable of its own name: dims print it like an axis.
        key = (name, self.numbering.number(element))
        if any(key in level.indirect for level in self.levels):
            return
        value = self.emit(element)
        level = self._level_for(element, [element])
        level.lines.append(f"const int64_t {dims.name(name)} = (int64_t){value};")
        level.indirect[key] = name

    def _select(self, e: Select, number: int) -> str:
        # only the chosen side may load, so each side is computed inside its own block
        variable = self.fresh()
        out = self.levels[-1]
        out.lines.append(f"{value_type(e.dtype)} {variable};")
        lhs, rhs = (self.offset(d, e.indirect) for d in (e.lhs, e.rhs))
        for truth in self.branches(f"{lhs} < {rhs}"):
            with self.assuming((e.lhs, e.rhs), truth):
                self.write(f"{variable} = {self.emit(e.then if truth else e.other)};")
        out.names[number] = variable
        return variable

    # ---- stores ----

    def store(self, store: Store) -> None:
        """Write one element, without its guard."""
        type = self.kernel.params[store.param].type
        value = self.emit(store.value)
        at = self.offset(store.offset, store.indirect)
        self.write(f"p{store.param}[{at}] = {narrow(value, store.value.dtype, type.dtype)};")


def decode(axes: Sequence[Axis], flat: str) -> list[str]:
    """Axis variables from a flat index over their extents."""
    if not axes:
        return []
    if len(axes) == 1:
        return [f"const int64_t {dims.name(axes[0].name)} = {flat};"]
    lines = [f"int64_t rest = {flat};"]
    for axis in reversed(axes[1:]):
        extent = dims.text(axis.extent)
        lines.append(f"const int64_t {dims.name(axis.name)} = rest % {extent};")
        lines.append(f"rest /= {extent};")
    lines.append(f"const int64_t {dims.name(axes[0].name)} = rest;")
    return lines


def unit_axes(axes: Iterable[Axis]) -> list[str]:
    """The variables of axes of extent 1, over which nothing loops."""
    return [f"const int64_t {dims.name(a.name)} = 0;" for a in axes if a.extent == 1]


def declarations(kernel: LoopKernel) -> list[str]:
    """Buffers and dims as typed variables."""
    types = [pointer_type(param) for param in kernel.params]
    lines = [f"{type} const p{i} = ({type})p[{i}];" for i, type in enumerate(types)]
    return [*lines, *dims.given(kernel.symbols)]


def widen(text: str, dtype: DType) -> str:
    """A stored element as the value that is computed with."""
    return f"tw_from_{dtype.name}({text})" if dtype.name in NARROW else text


def narrow(text: str, source: DType, dtype: DType) -> str:
    """A value as the element that is stored."""
    if dtype.name in NARROW:
        return f"tw_to_{dtype.name}({convert(text, source, f32)})"
    if dtype == bool_:
        return text if source == bool_ else f"({text} != 0)"
    return convert(text, source, dtype)
