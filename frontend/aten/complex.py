"""Operations on complex numbers, which are pairs of real values here."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..declined import Declined
from ..importer import COMPLEX, HANDLERS, Call, Handler
from ..nn.complex_numbers import BINARY, UNARY, Complex, polar
from ..nn.formula import Term
from ..nn.fourier import hermitian, transform
from ..pairs import Pair
from . import contract
from .pointwise import overloads
from .reduce import axes_of
from .view import permute, unpermute

# linear in every operand that is no index: done to both parts by the handler of real numbers
_BY_PARTS = """
    view.default reshape.default _unsafe_view.default _reshape_alias.default view_as.default
    reshape_as.default flatten.using_ints unflatten.int unsqueeze.default view_copy.default
    squeeze.default squeeze.dim squeeze.dims transpose.int swapaxes.default transpose_copy.int
    permute.default permute_copy.default t.default numpy_T.default mT.default expand.default
    broadcast_to.default expand_as.default expand_copy.default slice.Tensor slice_copy.Tensor
    narrow.default select.int select_copy.int split.sizes split.default split_with_sizes.default
    split_with_sizes_copy.default split.Tensor chunk.default tensor_split.sections unbind.int
    unfold.default unfold_copy.default cat.default concat.default concatenate.default stack.default
    repeat.default tile.default repeat_interleave.self_int roll.default slice_scatter.default
    select_scatter.default diagonal_scatter.default copy.default flip.default index_select.default
    gather.default index.Tensor _unsafe_index.Tensor masked_select.default tril.default
    triu.default diagonal.default constant_pad_nd.default pad.default where.self where.ScalarSelf
    where.ScalarOther where.Scalar masked_fill.Scalar masked_fill.Tensor index_put.default
    index_copy.default index_fill.int_Scalar index_fill.int_Tensor scatter.src scatter.value
    scatter_add.default index_add.default embedding.default add.Tensor add.Scalar sub.Tensor
    sub.Scalar rsub.Tensor rsub.Scalar neg.default negative.default sum.default sum.dim_IntList
    mean.default mean.dim cumsum.default alias.default clone.default contiguous.default
    detach.default lift_fresh_copy.default lift_fresh.default lift.default positive.default
    full.default full_like.default new_full.default scalar_tensor.default fill.Scalar fill.Tensor
    zeros.default zeros_like.default new_zeros.default zero.default empty.memory_format
    empty_like.default new_empty.default empty_permuted.default empty_strided.default
    to.dtype to.dtype_layout to.device to.other _to_copy.default type_as.default
    reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default
    replication_pad1d.default replication_pad2d.default replication_pad3d.default
""".split()
# real numbers, whose imaginary part is 0
_REAL = """ones.default ones_like.default new_ones.default arange.default arange.start
    arange.start_step eye.default eye.m""".split()
_AS_THEY_ARE = frozenset("index indices mask condition alpha size sizes pad repeats".split())


def _enter(names: Sequence[str], handler: Handler) -> None:
    COMPLEX.update({f"aten.{name}": handler for name in names})


def _part(call: Call, x: Any, name: str) -> Any:
    """The part `name` ("real" or "imag") of what is given to an operation."""
    if isinstance(x, Pair):
        return getattr(x, name)
    if isinstance(x, tuple):
        return tuple(_part(call, item, name) for item in x)
    if isinstance(x, Value):
        value = call.value(x, x.dtype if x.dtype.is_float else call.dtype)
        return value if name == "real" else _zeros_like(call, value)
    return x if name == "real" and not isinstance(x, complex) else getattr(x, name, x)


def _zeros_like(call: Call, x: Value) -> Value:
    return call.b.full(value=0.0, shape=x.shape, dtype=x.dtype)


def _is_number(argument: torch.Argument) -> bool:
    """Whether an argument is what is computed with, not an axis, a size or an index."""
    type = str(argument.type)
    return argument.name not in _AS_THEY_ARE and ("Tensor" in type or "number" in type)


def _by_parts(name: str) -> Handler:
    def apply(call: Call, *args: Any, **kwargs: Any) -> Any:
        handler = HANDLERS[f"aten.{name}"]
        schema = call.target._schema.arguments
        split = {a.name for a in schema if _is_number(a)}
        if any(isinstance(x, complex) for key, x in kwargs.items() if key not in split):
            raise Declined("a complex factor")

        def of(name: str) -> Any:
            given = [_part(call, x, name) if a.name in split else x for a, x in zip(schema, args)]
            named = {k: _part(call, x, name) if k in split else x for k, x in kwargs.items()}
            return handler(call, *given, **named)

        real, imag = of("real"), of("imag")
        if isinstance(real, Value):
            return Pair(real, imag) if call.expected.is_complex() else real
        return tuple(Pair(*parts) for parts in zip(real, imag))

    return apply


def _real(name: str) -> Handler:
    def apply(call: Call, *args: Any, **kwargs: Any) -> Pair:
        value = HANDLERS[f"aten.{name}"](call, *args, **kwargs)
        return Pair(value, _zeros_like(call, value))

    return apply


COMPLEX.update({f"aten.{name}": _by_parts(name) for name in _BY_PARTS})
COMPLEX.update({f"aten.{name}": _real(name) for name in _REAL})


# ---- formulas --------------------------------------------------------------------------------


def _complex(call: Call, x: Any, dtype: DType) -> Complex:
    """An operand of a formula: a pair, a real value, or a number."""
    parts = (
        call.value(_part(call, x, name), dtype)
        if isinstance(x, Pair | Value)
        else call.b.constant(float(getattr(x, name)), dtype)
        for name in ("real", "imag")
    )
    return Complex(*(Term(call.b, part, dtype) for part in parts))


def _dtype_of(*operands: Any) -> DType:
    """The widest float dtype among the parts of operands."""
    values = (x.real if isinstance(x, Pair) else x for x in operands)
    dtypes = (x.dtype for x in values if isinstance(x, Value))
    return max((d for d in dtypes if d.is_float), key=lambda d: d.bits)


def _formula(formula: Callable[..., Any]) -> Handler:
    def apply(call: Call, *operands: Any, **options: Any) -> Any:
        if any(value is not None for value in options.values()):
            raise Declined(f"options {', '.join(options)} of a complex operation")
        dtype = call.dtype if call.dtype.is_float else _dtype_of(*operands)
        found = formula(*(_complex(call, x, dtype) for x in operands))
        if isinstance(found, Term):
            return found.value
        return Pair(*(call.broadcast(part.value, call.shape) for part in found))

    return apply


for _name, _function in UNARY.items():
    _enter([f"{_name}.default"], _formula(_function))
for _name, _function in BINARY.items():
    _names = overloads(_name, kinds="Tensor Scalar Tensor_Scalar Tensor_Tensor")
    _enter(_names, _formula(_function))


def _polar(call: Call, size: Value, turn: Value) -> Pair:
    parts = polar(*(Term(call.b, call.value(v, call.dtype), call.dtype) for v in (size, turn)))
    return Pair(*(part.value for part in parts))


_enter(["polar.default"], _polar)


# ---- from parts to pairs and back ------------------------------------------------------------


def _joined(call: Call, real: Value, imag: Value) -> Pair:
    return Pair(*(call.broadcast(call.value(v, call.dtype), call.shape) for v in (real, imag)))


def _conjugate(call: Call, x: Pair) -> Pair:
    return Pair(x.real, call.b.neg(x.imag))


def _view_as_real(call: Call, x: Pair) -> Value:
    parts = (call.reshape(v, (*v.shape, 1)) for v in (x.real, x.imag))
    return call.b.concat(*parts, axis=x.real.type.rank)


def _view_as_complex(call: Call, x: Value) -> Pair:
    axis = x.type.rank - 1
    parts = (call.b.slice(x, axis=axis, start=i, stop=i + 1) for i in range(2))
    return Pair(*(call.reshape(part, x.shape[:-1]) for part in parts))


_enter(["complex.default"], _joined)
_enter(
    ["_conj.default", "conj.default", "_conj_physical.default", "conj_physical.default"],
    _conjugate,
)
_enter(["resolve_conj.default", "resolve_neg.default"], lambda call, x: x)
_enter(["view_as_real.default", "view_as_real_copy.default"], _view_as_real)
_enter(["view_as_complex.default", "view_as_complex_copy.default"], _view_as_complex)
_enter(["real.default"], lambda call, x: x.real)
_enter(["imag.default"], lambda call, x: x.imag)


# ---- products --------------------------------------------------------------------------------


def _product(call: Call, x: Any, y: Any) -> Pair:
    b, dtype = call.b, call.dtype
    a, c, d, e = (
        call.value(_part(call, v, name), dtype) for v in (x, y) for name in ("real", "imag")
    )
    real = b.sub(contract.matmul(call, a, d), contract.matmul(call, c, e))
    return Pair(real, b.add(contract.matmul(call, a, e), contract.matmul(call, c, d)))


_enter([f"{n}.default" for n in "matmul linalg_matmul mm bmm mv dot".split()], _product)


# ---- Fourier transforms ----------------------------------------------------------------------

_POWERS = (0.0, -0.5, -1.0)  # torch's codes of normalization: what the size is raised to


def _along(
    call: Call, x: Pair | Value, axis: int, inverse: bool, halves_of: int | None = None
) -> Pair:
    """The transform along one axis; of `halves_of` elements, whose first half x is, if given."""
    real, imag = (x.real, x.imag) if isinstance(x, Pair) else (x, None)
    order = [i for i in range(real.type.rank) if i != axis] + [axis]
    parts = permute(call, real, order), None if imag is None else permute(call, imag, order)
    if halves_of is not None:
        parts = hermitian(call.b, parts, halves_of)
    found = transform(call.b, parts, inverse=inverse)
    return Pair(*(unpermute(call, v, order) for v in found))


def _scaled(call: Call, x: Pair, sizes: Sequence[Any], normalization: int) -> Pair:
    if normalization == 0:
        return x
    count = 1
    for size in sizes:
        count *= call.static(size, "the size of a transform")
    factor = call.b.constant(float(count) ** _POWERS[normalization], x.real.dtype)
    return Pair(call.b.mul(x.real, factor), call.b.mul(x.imag, factor))


def _complex_to_complex(
    call: Call, x: Pair, dim: Sequence[int], normalization: int, forward: bool
) -> Pair:
    sizes = x.real.shape
    axes = axes_of(x.real, tuple(dim)) if dim else ()
    for axis in axes:
        x = _along(call, x, axis, not forward)
    return _scaled(call, x, [sizes[axis] for axis in axes], normalization)


def _real_to_complex(
    call: Call, x: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Pair:
    axes = [axis % x.type.rank for axis in dim]
    sizes = [x.shape[axis] for axis in axes]
    last = axes[-1]
    found = _along(call, x, last, inverse=False)
    if onesided:
        stop = call.shape[last]
        parts = (call.b.slice(v, axis=last, start=0, stop=stop) for v in (found.real, found.imag))
        found = Pair(*parts)
    for axis in axes[:-1]:
        found = _along(call, found, axis, inverse=False)
    return _scaled(call, found, sizes, normalization)


def _complex_to_real(
    call: Call, x: Pair, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Value:
    axes = [axis % x.real.type.rank for axis in dim]
    for axis in axes[:-1]:
        x = _along(call, x, axis, inverse=True)
    size = call.static(last_dim_size, "the size of a transform")
    found = _along(call, x, axes[-1], inverse=True, halves_of=size)
    sizes = [call.shape[axis] for axis in axes]
    return _scaled(call, found, sizes, normalization).real


_enter(["_fft_c2c.default"], _complex_to_complex)
_enter(["_fft_r2c.default"], _real_to_complex)
_enter(["_fft_c2r.default"], _complex_to_real)
