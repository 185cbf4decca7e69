"""Matrix products and linear layers."""

from typing import Any

from ...ir import types
from ...ir.graph import Value
from ..importer import Call, Declined, Scalar, handles


@handles("linear.default")
def _linear(call: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if weight.type.rank == 1:
        product = matmul(call, x, weight)
    elif x.type.rank == 1:
        row = call.reshape(x, (1, x.shape[0]))
        product = call.reshape(call.b.matmul(row, weight, transpose_w=True), call.shape)
    else:
        product = call.b.matmul(x, weight, transpose_w=True)
    return product if bias is None else call.b.add(product, bias)


@handles("matmul.default", "linalg_matmul.default", "mm.default", "bmm.default")
@handles("mv.default", "dot.default")
def matmul(call: Call, x: Value, y: Value) -> Value:
    """torch.matmul: a vector on the left is a row, on the right a column."""
    left = call.reshape(x, (1, *x.shape)) if x.type.rank == 1 else x
    if y.type.rank == 1:
        # x @ y is x @ (y as one row)^T
        result = call.b.matmul(left, call.reshape(y, (1, *y.shape)), transpose_w=True)
    else:
        result = call.b.matmul(left, y)
    return call.reshape(result, call.shape)


@handles("addmm.default", "baddbmm.default", "addmv.default")
def _addmm(
    call: Call, bias: Value, x: Value, y: Value, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Value:
    return _added(call, bias, matmul(call, x, y), beta, alpha)


@handles("addbmm.default")
def _addbmm(
    call: Call, bias: Value, x: Value, y: Value, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Value:
    return _added(call, bias, call.b.sum(call.b.matmul(x, y), axes=(0,)), beta, alpha)


def _added(call: Call, bias: Value, product: Value, beta: Scalar, alpha: Scalar) -> Value:
    """beta * bias + alpha * product; what is integer takes whole factors, as torch cuts them."""
    b = call.b
    if call.dtype.is_integer:
        beta, alpha = (int(x) if isinstance(x, float) else x for x in (beta, alpha))
    if alpha != 1:
        product = b.mul(product, call.parameter(alpha))
    if beta == 0:
        return product
    return b.add(product, bias if beta == 1 else b.mul(bias, call.parameter(beta)))


@handles("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def _grouped_mm(
    call: Call,
    x: Value,
    weight: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: Any = None,
) -> Value:
    """Rows up to offs[0] meet the first matrix, from there to offs[1] the second; the rest is 0."""
    if x.type.rank != 2 or weight.type.rank != 3 or offs is None or bias is not None:
        raise Declined("a grouped product other than of rows [M, K] with matrices [G, K, N]")
    b, groups = call.b, weight.shape[0]
    row = call.reshape(b.iota(length=x.shape[0], dtype=offs.dtype), (x.shape[0], 1))
    past = call.value(b.le(offs, row), types.i64)
    group = b.sum(past, axes=(1,))  # how many groups end before the row
    last = call.value(groups - 1, types.i64)
    product = b.grouped_matmul(x, weight, b.minimum(group, last))
    inside = call.reshape(b.le(group, last), (x.shape[0], 1))
    product = b.where(inside, product, call.value(0, product.dtype))
    return call.value(product, call.dtype)


@handles("outer.default", "ger.default")
def _outer(call: Call, x: Value, y: Value) -> Value:
    column = call.reshape(x, (x.shape[0], 1))
    return call.b.mul(call.value(column, call.dtype), call.value(y, call.dtype))


@handles("bilinear.default")
def _bilinear(call: Call, x: Value, y: Value, weight: Value, bias: Any = None) -> Value:
    # out[.., k] = sum over i, j of x[.., i] * weight[k, i, j] * y[.., j]
    b = call.b
    k, i, j = weight.shape
    if x.type.rank == 1:
        x, y = call.reshape(x, (1, i)), call.reshape(y, (1, j))
    left = b.matmul(x, call.reshape(b.transpose(weight, perm=(1, 0, 2)), (i, k * j)))
    left = call.reshape(left, (*x.shape[:-1], k, j))
    right = call.reshape(y, (*y.shape[:-1], 1, j))
    result = call.reshape(b.sum(b.mul(left, right), axes=(-1,)), call.shape)
    return result if bias is None else b.add(result, bias)
