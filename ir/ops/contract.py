"""Contractions: sums of products."""

from ..combine import Contraction
from ..op import broadcast_shapes, op
from ..types import TensorType

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")  # of gated products


@op(kind="contract")
def matmul(x, w, *, transpose_w: bool = False):
    """x @ w, batched: x [..., M, K], w [..., K, N] -> [..., M, N]; leading axes broadcast.

    With transpose_w, w is [..., N, K], as linear layers store it. Accumulates in float32 (float64
    for float64), integers in int32 (int64 for int64), where they wrap.
    """
    if x.rank < 2 or w.rank < 2:
        raise TypeError(f"x is {x}, w is {w}: both need rank 2 or more")
    if x.dtype != w.dtype:
        raise TypeError(f"x is {x}, w is {w}: dtypes differ; cast one of them")
    n, k = (w.shape[-2], w.shape[-1]) if transpose_w else (w.shape[-1], w.shape[-2])
    if x.shape[-1] != k:
        hint = "" if k == n or x.shape[-1] != n else "; w looks stored the other way: transpose_w"
        raise TypeError(f"inner dimensions differ: {x.shape[-1]} and {k}{hint}")
    batch = broadcast_shapes(x.shape[:-2], w.shape[:-2])
    return x.with_shape((*batch, x.shape[-2], n))


@matmul.set_contraction
def _(*, transpose_w):
    return Contraction(ws=("nk" if transpose_w else "kn",))


@op(kind="contract")
def grouped_matmul(x, w, index, *, transpose_w: bool = False):
    """out[m] = x[m] @ w[index[m]]: x [M, K], w [G, K, N], index integers [M] -> [M, N].

    A mixture of experts: each row has the matrix that its index names, in [0, G); running it raises
    IndexOutOfRange for others. With transpose_w, w is [G, N, K]. Accumulates as matmul does.
    """
    (k, n) = _grouped(x, w, index, transpose_w)
    if x.shape[1] != k:
        raise TypeError(f"inner dimensions differ: {x.shape[1]} and {k}")
    return x.with_shape((x.shape[0], n))


@grouped_matmul.set_contraction
def _(*, transpose_w):
    return Contraction(ws=("nk" if transpose_w else "kn",), is_grouped=True)


def _grouped(x: TensorType, w: TensorType, index: TensorType, transpose_w: bool) -> tuple:
    """(K, N) of the matrices of a grouped product."""
    if x.rank != 2 or w.rank != 3 or x.dtype != w.dtype:
        raise TypeError(f"x is {x}, w is {w}: must be [M, K] and [G, K, N] of one dtype")
    if index.shape != x.shape[:1] or not index.dtype.is_integer:
        raise TypeError(f"index is {index}: must be integers [{x.shape[0]}]")
    return w.shape[:0:-1] if transpose_w else w.shape[1:]


def _check_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        raise TypeError(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}")


@op(kind="contract")
def gated_linear(x, w_gate, w_up, *, activation: str):
    """act(x @ w_gate^T) * (x @ w_up^T): x [..., M, K], both w [F, K] -> [..., M, F].

    Shazeer, "GLU variants improve transformer", 2020, eq. 5. activation: silu, gelu, gelu_tanh,
    relu or sigmoid.
    """
    _check_activation(activation)
    if w_gate.rank != 2 or w_gate != w_up:
        raise TypeError(f"w_gate is {w_gate}, w_up is {w_up}: must be of one type [F, K]")
    if x.rank < 2 or x.shape[-1] != w_gate.shape[1] or x.dtype != w_gate.dtype:
        raise TypeError(f"x is {x}, w_gate is {w_gate}: x must be [..., M, {w_gate.shape[1]}]")
    return TensorType((*x.shape[:-1], w_gate.shape[0]), x.dtype)


@gated_linear.set_contraction
def _(*, activation):
    return Contraction(ws=("nk", "nk"), epilogue=f"{activation}(acc0) * acc1")


@gated_linear.set_decomposition
def _(b, x, w_gate, w_up, *, activation):
    gate = getattr(b, activation)(b.matmul(x, w_gate, transpose_w=True))
    return b.mul(gate, b.matmul(x, w_up, transpose_w=True))


@op(kind="contract")
def grouped_gated_linear(x, w_gate, w_up, index, *, activation: str):
    """act(x[m] @ w_gate[g]^T) * (x[m] @ w_up[g]^T) for g = index[m]: both w [G, F, K] -> [M, F].

    gated_linear, with the matrices of each row chosen as in grouped_matmul.
    """
    _check_activation(activation)
    k, f = _grouped(x, w_gate, index, True)
    if w_gate != w_up:
        raise TypeError(f"w_gate is {w_gate}, w_up is {w_up}: must be of one type [G, F, K]")
    if x.shape[1] != k:
        raise TypeError(f"x is {x}, w_gate is {w_gate}: x must be [M, {k}]")
    return x.with_shape((x.shape[0], f))


@grouped_gated_linear.set_contraction
def _(*, activation):
    epilogue = f"{activation}(acc0) * acc1"
    return Contraction(ws=("nk", "nk"), epilogue=epilogue, is_grouped=True)


@grouped_gated_linear.set_decomposition
def _(b, x, w_gate, w_up, index, *, activation):
    gate = getattr(b, activation)(b.grouped_matmul(x, w_gate, index, transpose_w=True))
    return b.mul(gate, b.grouped_matmul(x, w_up, index, transpose_w=True))
