"""Runs loop IR with NumPy, in float64: what kernels are held against, without an emitter."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..codegen.loops import (
    Apply,
    Axis,
    Cast,
    Check,
    Const,
    Contract,
    Index,
    Load,
    LoopKernel,
    Pointwise,
    Reduce,
    Reduction,
    Ref,
    Sample,
    Select,
    Store,
)
from ..codegen.templates import scatter
from ..codegen.templates.attention import Attention, Located
from ..codegen.templates.scan import RESULT, Scan
from ..codegen.templates.scatter import Scatter
from ..codegen.templates.sort import Sort
from ..ir.combine import reduced, scanned
from ..ir.dim import compile_dims, symbols_of
from ..ir.op import OPS
from ..ir.scalar import FUNCTIONS, evaluate_scalar

Places = Mapping[str, np.ndarray]  # axis -> which of its indices are computed


def run_kernel(
    kernel: LoopKernel,
    buffers: Sequence[np.ndarray],
    sizes: Mapping[str, int],
    only: Places | None = None,
) -> None:
    """Run `kernel` on flat buffers (one a parameter), writing those it stores to.

    `only` restricts axes that no part sums, sorts or scans over; what is not computed is not
    written. Elements that are read are widened: floats to float64.
    """
    for part in kernel.parts:
        _Run(buffers, dict(sizes), kernel.records, only or {}).part(part)


class _Run:
    def __init__(
        self,
        buffers: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        records: int | None,
        only: Places,
    ):
        self.buffers, self.records, self.only = buffers, records, only
        self.env: dict[str, Any] = dict(sizes)
        self.refs: dict[str, np.ndarray] = {}
        self.mask: Any = np.True_  # where a guarded side of a Select is live

    def part(self, part) -> None:
        getattr(self, type(part).__name__.lower())(part)

    def grid(self, axes) -> None:
        extents = [self.index(a.extent) for a in axes]
        for i, (axis, extent) in enumerate(zip(axes, extents)):
            shape = [1] * len(axes)
            at = self.only.get(axis.name, np.arange(extent))
            shape[i] = len(at)
            self.env[axis.name] = at.reshape(shape)

    def index(self, dim):
        if isinstance(dim, int):
            return dim
        names = sorted(symbols_of(dim))
        bind = compile_dims([dim], names)
        bind.__globals__.update(min=np.minimum, max=np.maximum)
        return bind(*(self.env[n] for n in names))[0]

    def element(self, e: Any) -> Any:
        match e:
            case Const(value=value):
                return value
            case Index(value=value, indirect=indirect):
                self.bind_indirect(indirect)
                return self.index(value)
            case Check():
                return self.check(e)
            case Ref(name=name):
                return self.refs[name]
            case Cast(arg=arg, to=dtype):
                made = np.asarray(self.element(arg))
                if dtype.is_float:  # f32 is not rounded to: nothing is, but what is narrower
                    return made.astype(dtype.numpy if dtype.bits < 32 else float).astype(float)
                return made.astype(dtype.numpy)
            case Apply(fn=fn, args=args):
                values = [self.element(a) for a in args]
                with np.errstate(all="ignore"):
                    return FUNCTIONS[fn](*values)
            case Select(lhs=lhs, rhs=rhs, then=then, other=other, indirect=indirect):
                self.bind_indirect(indirect)
                condition = np.asarray(self.index(lhs) < self.index(rhs))
                outer = self.mask
                self.mask = outer & condition
                yes = self.element(then)
                self.mask = outer & ~condition
                no = self.element(other)
                self.mask = outer
                return np.where(condition, yes, no)
            case Load(param=param, offset=offset, indirect=indirect):
                self.bind_indirect(indirect)
                at = self.index(offset)
                live, at = np.broadcast_arrays(self.mask, at)
                return widened(self.buffers[param][np.where(live, at, 0)])
        raise AssertionError(e)

    def check(self, e: Check):
        value = np.asarray(self.element(e.arg))
        live, value = np.broadcast_arrays(self.mask, value)
        size = self.index(0 if e.size is None else e.size)
        at = np.where(value < 0, value + size, value) if e.wraps else value
        wrong = (value == 0) if e.size is None else (at < 0) | (at >= size)
        assert self.records is not None
        for index in value[wrong & live].reshape(-1)[:1]:
            place = 2 * e.number
            self.buffers[self.records][place] = size + 1
            if e.size is not None:
                self.buffers[self.records][place + 1] = index
        return np.where(wrong, 1 if e.size is None else 0, at).astype(value.dtype)

    def bind_indirect(self, indirect) -> None:
        for name, element in indirect:
            self.env[name] = np.asarray(self.element(element)).astype(np.int64)

    def store(self, store: Store, shape) -> None:
        value = np.broadcast_to(self.element(store.value), shape)
        self.bind_indirect(store.indirect)
        at = np.broadcast_to(self.index(store.offset), shape)
        if store.guard is not None:
            keep = np.broadcast_to(np.asarray(self.element(store.guard)) >= 0, shape)
            at, value = at[keep], value[keep]
        target = self.buffers[store.param]
        assert at.size == np.unique(at).size, "two points store to one element"
        target[at] = value.astype(target.dtype)

    def shape(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        return tuple(
            len(self.only[a.name]) if a.name in self.only else int(self.index(a.extent))
            for a in axes
        )

    def pointwise(self, part: Pointwise) -> None:
        self.grid(part.axes)
        for store in part.stores:
            self.store(store, self.shape(part.axes))

    def reduce(self, part: Reduce) -> None:
        axes = (*part.rows, part.axis)
        self.grid(axes)
        shape = self.shape(axes)
        for phase in part.phases:
            made = {}
            for reduction in phase:
                made[reduction.name] = self.reduced(reduction, shape)
            self.refs.update(made)
        for store in part.row_stores:
            self.env[part.axis.name] = np.zeros((1,) * len(axes), int)
            self.store(store, (*shape[:-1], 1))
        self.grid(axes)
        for store in part.stores:
            self.store(store, shape)

    def scan(self, part: Scan) -> None:
        axes = (*part.rows, part.axis)
        self.grid(axes)
        shape = self.shape(axes)
        value = np.broadcast_to(self.element(part.value), shape)
        self.refs[RESULT] = scanned(part.combine, value, -1)
        for store in part.stores:
            self.store(store, shape)

    def scatter(self, part: Scatter) -> None:
        self.grid(part.axes)
        shape = self.shape(part.axes)
        start = np.broadcast_to(self.element(part.start), shape)
        result = start.astype(float if part.dtype.is_float else start.dtype)
        lines = [*part.outer, *part.inner]
        space = [replace(a, extent=n) for a, n in zip(lines, part.counts)]
        space.insert(len(part.outer), part.source)
        self.grid(space)
        given = self.shape(space)
        places = np.broadcast_to(self.element(part.index), given)
        values = np.broadcast_to(self.element(part.value), given)
        for at in np.ndindex(*given):
            to = list(at)
            to[len(part.outer)] = places[at]
            x, y = result[tuple(to)], values[at]
            result[tuple(to)] = evaluate_scalar(part.combine.tree, {"x": x, "y": y}, {})
        self.grid(part.axes)
        self.refs[scatter.RESULT] = result
        for store in part.stores:
            self.store(store, shape)

    def sort(self, part: Sort) -> None:
        axes = (*part.rows, part.axis)
        self.grid(axes)
        values = np.broadcast_to(self.element(part.value), self.shape(axes))
        (keep,) = self.shape((part.rank,))
        _, places = OPS["sort"].reference(values, axis=-1, descending=part.is_descending)
        self.grid((*part.rows, part.rank))
        self.env[part.axis.name] = places[..., :keep]
        for store in part.stores:
            self.store(store, self.shape((*part.rows, part.rank)))

    def contract(self, part: Contract) -> None:
        batch, b = part.batch, len(part.batch)
        self.grid((*batch, part.m, part.k))
        for phase in part.phases:
            shape = self.shape((*batch, part.m, part.k))
            self.refs.update({r.name: self.reduced(r, shape) for r in phase})
        x = np.broadcast_to(self.element(part.x), self.shape((*batch, part.m, part.k)))
        for stat in part.stats:
            self.refs[stat.name] = self.reduced(stat, x.shape)
        outer = batch if part.group is None else (part.m,)  # a row has a matrix of its own
        self.grid((*outer, part.n, part.k))
        if part.group is not None:
            self.env[part.group.axis.name] = np.asarray(self.element(part.group.index), np.int64)
        sums = "...mk,...nk->...mn" if part.group is None else "mk,mnk->mn"
        for i, w in enumerate(part.ws):
            wide = np.broadcast_to(self.element(w), self.shape((*outer, part.n, part.k)))
            self.refs[f"acc{i}"] = np.einsum(sums, x, wide)
        axes = (*batch, part.m, part.n)
        self.grid(axes)
        assert len(axes) == b + 2
        for store in part.stores:
            self.store(store, self.shape(axes))

    def reduced(self, reduction: Reduction, shape) -> np.ndarray:
        value = np.broadcast_to(self.element(reduction.value), shape)
        if not reduction.running.is_float:
            value = value.astype(reduction.running.numpy)
        return reduced(reduction.combine, value, (-1,), reduction.value.dtype)[0][..., None]

    def places(self, view: Located, *extents) -> np.ndarray:
        """Where the elements of a view are in its buffer; the last axis lies side by side."""
        shape = [int(self.index(d)) for d in extents]
        strides = [*(self.index(s) for s in view.strides), 1][: len(shape)]
        at = np.ogrid[tuple(slice(n) for n in shape)]
        return self.index(view.offset) + sum(i * s for i, s in zip(at, strides, strict=True))

    def attention(self, part: Attention) -> None:
        heads = *part.batch, part.num_heads, part.queries
        q = self.buffers[part.q.param][self.places(part.q, *heads, part.head_dim)]
        out = self.places(part.out, *heads, part.value_dim)
        attrs = {"scale": part.scale, "window": part.window, "softcap": part.softcap}
        if part.pages is None:
            operands = [q]
            for view, size in ((part.k, part.head_dim), (part.v, part.value_dim)):
                at = self.places(view, *part.batch, part.num_kv_heads, part.keys, size)
                operands.append(self.buffers[view.param][at])
            if part.mask is not None:
                mask = self.buffers[part.mask.param][self.places(part.mask, *heads, part.keys)]
                operands.append(mask)
            attrs |= {"is_causal": part.is_causal, "unseen": part.unseen}
            self.buffers[part.out.param][out] = OPS["attention"].reference(*operands, **attrs)
            return
        pages, seqs = part.pages, int(self.index(part.pages.sequences))
        k, v = (
            self.buffers[view.param].reshape(-1, part.num_kv_heads, pages.size, size)
            for view, size in ((part.k, part.head_dim), (part.v, part.value_dim))
        )
        meta = [self.buffers[n] for n in (pages.table, pages.query_starts, pages.context_lens)]
        meta[0] = meta[0].reshape(seqs, -1)
        assert not any((part.heads, part.seen, part.bias)), "masks and biases of positions"
        attrs |= {"seen": None, "bias": None, "sink": None}
        found = OPS["paged_attention"].reference(q.swapaxes(0, 1), k, v, *meta, **attrs)
        self.buffers[part.out.param][out] = found.swapaxes(0, 1)

    def sample(self, part: Sample) -> None:
        names = ("logits", "temperature", "top_k", "top_p", "seed", "step")
        given = [self.buffers[getattr(part, n)] for n in names]
        given[0] = given[0].reshape(-1, part.vocab)
        self.buffers[part.out][:] = OPS["sample"].reference(*given)


def widened(values: np.ndarray) -> np.ndarray:
    """Floats of any width as float64; what is no float as it is."""
    return values if values.dtype.kind in "iub" else values.astype(np.float64)
