"""Element expressions of the loop IR as Triton expressions over a tile."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import frexp

from ...ir.abi import RECORD_WORDS
from ...ir.dim import Dim
from ...ir.types import DType, bool_, f32, f64, i32
from ..elements import index_facts
from ..loops import (
    Apply,
    Axis,
    Cast,
    Check,
    Const,
    Contract,
    Element,
    Index,
    Load,
    LoopKernel,
    Ref,
    Select,
    Store,
)
from .body import Body
from .names import constant, dim_text, value_type
from .scalars import TABLE

NOTHING: frozenset = frozenset()
TYPED = frozenset("div floordiv mod pow minimum maximum where".split())  # take no bare literals


@dataclass(frozen=True)
class AxisVar:
    """What stands for an axis: a 32-bit value over dims `dims` of the tile (none: a scalar).

    `mask` is the name of the condition that the index is below the extent; None where it always is.
    """

    text: str
    dims: frozenset[int] = NOTHING
    mask: str | None = None


@dataclass(frozen=True)
class Val:
    """A named value: the axes it depends on and the dims of the tile it spans."""

    text: str
    axes: frozenset[str] = NOTHING
    dims: frozenset[int] = NOTHING


def group_axes(part: Contract) -> tuple[Axis, ...]:
    """The axis over the matrices of a grouped product."""
    return () if part.group is None else (part.group.axis,)


def symbol_type(kernel: LoopKernel, name: str) -> str:
    """i32 where the symbol is proved to fit, else i64."""
    known = kernel.ranges.get(name)
    return "i32" if known is not None and known.hi is not None and known.hi < 2**31 else "i64"


class Env:
    """Emits elements at one place of the iteration space, into `body`.

    shape: of the tile; eviction: cache policy of loads, by parameter.
    """

    def __init__(
        self,
        body: Body,
        kernel: LoopKernel,
        extents: Iterable[Axis] = (),
        axes: Mapping[str, AxisVar] = {},
        shape: Sequence[int] = (),
        refs: dict[str, Val] | None = None,
        eviction: Mapping[int, str] | None = None,
    ):
        self.body, self.kernel, self.axes = body, kernel, dict(axes)
        self.shape = list(shape)  # prints as Triton spells a shape
        self.refs = {} if refs is None else refs  # shared: results appear as they are made
        self.eviction = eviction or {}
        self.facts = index_facts(kernel, extents)
        self._memo: dict[tuple, Val] = {}

    # ---- elements ----

    def element(self, element: Element, conditions: tuple[Val, ...] = ()) -> Val:
        """The value's name. Loads inside happen only where all `conditions` hold."""
        key = (id(element), conditions)
        if key not in self._memo:
            self._memo[key] = self._element(element, conditions)
        return self._memo[key]

    def value(self, element: Element, conditions: tuple[Val, ...] = ()) -> Val:
        """The value's name, of a type also where it is a literal."""
        value = self.element(element, conditions)
        return Val(self._typed(value.text, element)) if isinstance(element, Const) else value

    def whole(self, value: Val) -> str:
        """The value over the whole tile."""
        if len(value.dims) == len(self.shape):
            return value.text
        return self.body.name(f"tl.broadcast_to({value.text}, {self.shape})", value.axes)

    def _element(self, element: Element, conditions: tuple[Val, ...]) -> Val:
        match element:
            case Const(value, dtype):
                return Val(constant(value, dtype))
            case Ref(name):
                return self.refs[name]
            case Index():
                return self._index(element, conditions)
            case Check():
                return self._check(element, conditions)
            case Load():
                raw = self.raw_load(element, conditions)
                stored = self.kernel.params[element.param].type.dtype
                return self.to(raw, stored, element.dtype)
            case Cast():
                return self._cast(element, conditions)
            case Select():
                return self._select(element, conditions)
            case Apply(fn, args, _):
                return self._apply(fn, args, conditions)
        raise AssertionError(f"no such element: {element}")

    def _apply(self, fn: str, args: Sequence[Element], conditions: tuple[Val, ...]) -> Val:
        fn, args = _multiplied(fn, args)
        values = [self.element(a, conditions) for a in args]
        typed = next((a for a in reversed(args) if not isinstance(a, Const)), args[-1])
        texts = [v.text for v in values]
        if isinstance(typed, Const) or (fn == "where" and isinstance(args[0], Const)):
            # literals alone: Triton's functions want a value with a type
            texts = [self._typed(v.text, a) for v, a in zip(values, args)]
        elif fn in TYPED or typed.dtype == f64:
            texts = [self._typed(t, a) for t, a in zip(texts, args)]
        if fn == "div" and typed.dtype == f32 and values[1].dims < values[0].dims:
            given, divisor, reciprocal = self._shared_division(*values)
            text = f"shared_quotient({given}, {divisor.text}, {reciprocal.text})"
            return self._named(text, [values[0], reciprocal])
        return self._named(TABLE[fn](typed.dtype, *texts), values)

    def _shared_division(self, x: Val, divisor: Val) -> tuple[str, Val, Val]:
        """x / divisor, where many x have the same: both scaled, and the divisor's reciprocal."""
        scale = self._named(f"divisor_scale({divisor.text})", [divisor])
        scaled = self._named(f"{divisor.text} * {scale.text}", [divisor, scale])
        one = self._full("1.0", f32)
        reciprocal = self._named(f"tl.div_rn({one}, {scaled.text})", [scaled])
        return f"{x.text} * {scale.text}", scaled, reciprocal

    def _nearly(self, element: Element) -> Val | None:
        """A quotient by what many share, to 2^-23, for what is rounded to fewer bits; else None."""
        if not (isinstance(element, Apply) and element.fn == "div" and element.dtype == f32):
            return None
        if any(isinstance(a, Const) for a in element.args):
            return None
        x, divisor = (self.element(a) for a in element.args)
        if not divisor.dims < x.dims:
            return None
        given, _, reciprocal = self._shared_division(x, divisor)
        return self._named(f"{given} * {reciprocal.text}", [x, reciprocal])

    def _typed(self, text: str, element: Element) -> str:
        return self._full(text, element.dtype) if isinstance(element, Const) else text

    def _full(self, text: str, dtype: DType) -> str:
        return self.body.name(f"tl.full((), {text}, {value_type(dtype)})")

    def _cast(self, cast: Cast, conditions: tuple[Val, ...]) -> Val:
        value = self.value(cast.arg, conditions)
        return self.to(self.to(value, cast.arg.dtype, cast.to), cast.to, cast.dtype)

    def _select(self, select: Select, conditions: tuple[Val, ...]) -> Val:
        inner = self._indirect(select.indirect, conditions)
        lhs, rhs = self.dim(select.lhs, inner), self.dim(select.rhs, inner)
        inside = self._named(f"{lhs.text} < {rhs.text}", [lhs, rhs])
        outside = self._named(f"{lhs.text} >= {rhs.text}", [lhs, rhs])
        then = self.value(select.then, (*conditions, inside))
        other = self.value(select.other, (*conditions, outside))
        return self._named(
            f"tl.where({inside.text}, {then.text}, {other.text})", [inside, then, other]
        )

    def _index(self, index: Index, conditions: tuple[Val, ...]) -> Val:
        if isinstance(index.value, int):
            return Val(self._full(str(index.value), index.dtype))
        at = self.dim(index.value, self._indirect(index.indirect, conditions))
        return self._named(f"{at.text}.to({value_type(index.dtype)})", [at])

    def _indirect(
        self, indirect: tuple[tuple[str, Element], ...], conditions: tuple[Val, ...]
    ) -> dict[str, Val]:
        return {name: self.element(e, conditions) for name, e in indirect}

    def _check(self, check: Check, conditions: tuple[Val, ...]) -> Val:
        value = self.element(check.arg, conditions)
        if isinstance(check.arg, Const):
            value = Val(self._full(value.text, check.dtype))
        size = Val("1") if check.size is None else self.dim(check.size)
        # what a tile holds outside its axes is no fault
        masks = [*self._masks(value.axes), *conditions]
        inside = " & ".join(m.text for m in masks) or self._full("1", bool_)
        record = f"p{self.kernel.records} + {RECORD_WORDS * check.number}"
        if check.size is None:
            text = f"checked_divisor({value.text})"
            statement = f"record_divisor({value.text}, {inside}, {record})"
        else:
            given = f"{value.text}, {size.text}"
            text = f"checked_index({given}, {check.wraps})"
            statement = f"record_index({given}, {inside}, {record}, {check.wraps})"
        self.body.at_end(statement, frozenset().union(*(v.axes for v in (value, size, *masks))))
        return self._named(text, [value, size])

    def to(self, value: Val, source: DType, dtype: DType) -> Val:
        """A value of `source`, as it is held or stored, as one of `dtype` is stored."""
        if source == dtype:
            return value
        if source.is_float and source.bits == 8:
            return self.to(self._named(f"from_{source}({value.text})", [value]), f32, dtype)
        # as C does: narrow floats are made of f32, narrow integers, of floats, through i32
        single = None
        if dtype.bits < 32 and dtype != bool_:
            single = f32 if dtype.is_float else i32 if source.is_float else None
        if single not in (None, source):
            value = self.to(value, source, single)
        if dtype == bool_:
            text = f"{value.text} != 0"
        elif dtype.is_float and dtype.bits == 8:
            text = f"to_{dtype}({value.text})"
        else:
            text = f"{value.text}.to({value_type(dtype)})"
        return self._named(text, [value])

    def _named(self, text: str, parts: Sequence[Val], prefix: str = "t") -> Val:
        axes = NOTHING.union(*(p.axes for p in parts))
        dims = NOTHING.union(*(p.dims for p in parts))
        return Val(self.body.name(text, axes, prefix), axes, dims)

    # ---- the ends of axes ----

    def below(
        self, index: str, extent: Dim, step: int | None = None, axes: frozenset[str] = NOTHING
    ) -> str | None:
        """The condition that an index is below the extent; None where tiles of `step` fill it."""
        if step is not None and self.facts.proved_multiple(extent, step):
            return None
        return self.body.name(f"{index} < {self.dim(extent).text}", axes, "in")

    def span(
        self,
        start: str,
        size: int,
        dim: int,
        extent: Dim,
        prefix: str = "t",
        axes: frozenset[str] = NOTHING,
    ) -> AxisVar:
        """The `size` indices from `start` on, along one of two dims."""
        lanes = f"tl.arange(0, {size}){'[:, None]' if dim == 0 else '[None, :]'}"
        index = self.body.name(f"{start} + {lanes}", axes, prefix)
        return AxisVar(index, frozenset([dim]), self.below(index, extent, size, axes))

    def split(self, axes: Sequence[Axis], flat: AxisVar) -> dict[str, AxisVar]:
        """Variables for `axes` from a flat index over them, the last axis fastest."""
        result = {}
        rest, names = flat.text, frozenset(a.name for a in axes)
        for axis in reversed(axes[1:]):
            extent = self.dim(axis.extent).text
            index = self.body.name(f"{rest} % {extent}", names, "at")
            result[axis.name] = replace(flat, text=index)
            rest = self.body.name(f"{rest} // {extent}", names, "at")
        if axes:
            result[axes[0].name] = replace(flat, text=rest)
        return result

    def inside(
        self, along: Axis, value: Val, start: float | int | bool = 0, dtype: DType | None = None
    ) -> Val:
        """The value, `start` past the end of an axis: what is made of masked loads need not be."""
        masks = self._masks([along.name])
        if not masks:
            return value
        fill = "0" if dtype is None else self._full(constant(start, dtype), dtype)
        return self._named(f"tl.where({masks[0].text}, {value.text}, {fill})", [value, *masks])

    # ---- dims ----

    def dim(self, dim: Dim, indirect: Mapping[str, Val] = {}) -> Val:
        """An index expression; 64 bits wide where 32 are not proved enough."""
        is_wide = not self.facts.fits_32_bits(dim)
        used: list[Val] = []

        def leaf(name: str, wide: bool) -> str:
            value, bits = self._leaf(name, indirect)
            if wide and bits == 32:
                value = self._named(f"tl.cast({value.text}, tl.int64)", [value])
            used.append(value)
            return value.text

        text = dim_text(dim, leaf, self.facts, is_wide)
        if isinstance(dim, int):
            return Val(text)
        if text.isidentifier():
            return used[0]
        return self._named(text, used, "i")

    def _leaf(self, name: str, indirect: Mapping[str, Val]) -> tuple[Val, int]:
        if name in self.axes:
            axis = self.axes[name]
            return Val(axis.text, frozenset([name]), axis.dims), 32
        if name in indirect:
            value = indirect[name]
            return self._named(f"{value.text}.to(tl.int64)", [value]), 64
        number = self.kernel.symbols.index(name)
        return Val(f"s{number}"), 32 if symbol_type(self.kernel, name) == "i32" else 64

    # ---- memory ----

    def raw_load(self, load: Load, conditions: tuple[Val, ...] = ()) -> Val:
        """The element as stored, not widened; zero where masked off."""
        inner = self._indirect(load.indirect, conditions)
        offset = self.dim(load.offset, inner)
        masks = self._masks(offset.axes) + list(conditions)
        pointer = self._pointer(load.param, offset, masks)
        stored = self.kernel.params[load.param].type.dtype
        options = ""
        if masks:
            zero = "0.0" if stored.is_float and stored.bits > 8 else "0"
            options = f", mask={' & '.join(m.text for m in masks)}, other={zero}"
        if load.param in self.eviction:
            options += f', eviction_policy="{self.eviction[load.param]}"'
        return self._named(f"tl.load({pointer}{options})", [offset, *masks], "x")

    def write(self, stores: Iterable[Store]) -> None:
        """Write values at every point of the tile that is inside all axes."""
        for store in stores:
            self._store(store)

    def _store(self, store: Store) -> None:
        inner = self._indirect(store.indirect, ())
        stored = self.kernel.params[store.param].type.dtype
        given = store.value
        if isinstance(given, Cast) and given.to == stored:
            given = given.arg  # rounded as it is stored
        value = self._nearly(given) if stored.is_float and stored.bits < 32 else None
        value = self.to(value or self.value(given), given.dtype, stored)
        offset = self.dim(store.offset, inner)
        masks = self._masks(self.axes.keys())
        if store.guard is not None:
            guard = self.element(store.guard)
            masks.append(self._named(f"{guard.text} >= 0", [guard]))
        everything = Val("", NOTHING, frozenset(range(len(self.shape))))
        pointer = self._pointer(store.param, offset, [*masks, value, everything])
        mask = f", mask={' & '.join(m.text for m in masks)}" if masks else ""
        self.body.line(f"tl.store({pointer}, {value.text}{mask})")

    def _masks(self, axes: Iterable[str]) -> list[Val]:
        found = {}
        for name in sorted(axes):
            axis = self.axes.get(name)
            if axis is not None and axis.mask is not None:
                found[axis.mask] = Val(axis.mask, frozenset([name]), axis.dims)
        return list(found.values())

    def _pointer(self, param: int, offset: Val, others: Sequence[Val]) -> str:
        """Text of the address, widened to the dims that masks and values span."""
        dims = offset.dims.union(*(v.dims for v in others))
        if dims != offset.dims:
            return f"p{param} + ({offset.text} + tl.zeros({self.shape}, tl.int32))"
        # an axis over no dim is a scalar, or a tile of one: then what it masks must be one too
        only_masks = frozenset[str]().union(*(v.axes for v in others)) - offset.axes
        names = (n for n in sorted(only_masks) if n in self.axes and not self.axes[n].dims)
        terms = [offset.text, *(f"{self.axes[name].text} * 0" for name in names)]
        return f"p{param}" if terms == ["0"] else f"p{param} + {' + '.join(terms)}"


def _multiplied(fn: str, args: Sequence[Element]) -> tuple[str, Sequence[Element]]:
    """x / 2^k as x * 2^-k, which is the same number; others are rounded twice as a product."""
    if fn != "div" or not isinstance(args[1], Const):
        return fn, args
    by = args[1]
    mantissa, exponent = frexp(by.value)
    if abs(mantissa) != 0.5 or abs(exponent - 1) > 126:  # the reciprocal: a normal float32
        return fn, args
    return "mul", (args[0], replace(by, value=1 / by.value))
