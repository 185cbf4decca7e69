"""Matrix products, and contractions by a formula."""

from ....ir.dim import product
from ....ir.graph import Value
from ..operators import MICROSOFT, Call, Declined, onnx_op


@onnx_op("MatMul")
def matmul(call: Call, x: Value, y: Value) -> Value:
    """NumPy's matmul: a vector on the left is a row, on the right a column."""
    b = call.b
    left = call.reshape(x, (1, *x.shape)) if x.type.rank == 1 else x
    right = call.reshape(y, (*y.shape, 1)) if y.type.rank == 1 else y
    result = b.matmul(left, right)
    shape = list(result.shape)
    if y.type.rank == 1:
        del shape[-1]
    if x.type.rank == 1:
        del shape[-1 if y.type.rank == 1 else -2]
    return call.reshape(result, tuple(shape))


@onnx_op("Gemm")
def gemm(
    call: Call,
    x: Value,
    y: Value,
    c: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    broadcast: bool = True,
) -> Value:
    """alpha * x @ y + beta * c, with x or y transposed on demand."""
    b = call.b
    left = call.transpose(x, (1, 0)) if transA else x
    result = b.matmul(left, y, transpose_w=transB)
    if alpha != 1.0:
        result = b.mul(result, call.number(alpha, x.dtype))
    if c is None or beta == 0.0:
        return result
    scaled = c if beta == 1.0 else b.mul(c, call.number(beta, c.dtype))
    return b.add(result, scaled)


@onnx_op("FusedMatMul", domain=MICROSOFT)
def _fused_matmul(
    call: Call,
    x: Value,
    y: Value,
    *,
    alpha: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    transBatchA: bool = False,
    transBatchB: bool = False,
) -> Value:
    if transBatchA or transBatchB:
        raise Declined("transposed batches")
    left = call.transpose(x, _swapped(x)) if transA and x.type.rank > 1 else x
    right = call.transpose(y, _swapped(y)) if transB and y.type.rank > 1 else y
    result = matmul(call, left, right)
    return result if alpha == 1.0 else call.b.mul(result, call.number(alpha, x.dtype))


def _swapped(x: Value) -> list[int]:
    """The axes of a stack of matrices with the last two in each other's place."""
    axes = list(range(x.type.rank))
    return [*axes[:-2], axes[-1], axes[-2]]


@onnx_op("Einsum")
def _einsum(call: Call, *operands: Value, equation: str) -> Value:
    """Sums of products by axis letters: operands are multiplied two at a time, as products of
    matrices over the letters that are summed.
    """
    inputs, output = _letters(equation.replace(" ", ""), operands)
    terms = [_diagonal(call, x, axes) for x, axes in zip(operands, inputs, strict=True)]
    x, axes = terms[0]
    for number, (y, others) in enumerate(terms[1:], 1):
        later = set(output).union(*(a for _, a in terms[number + 1 :]))
        x, axes = _product(call, x, axes, y, others, later)
    gone = tuple(i for i, letter in enumerate(axes) if letter not in output)
    if gone:
        x = call.b.sum(x, axes=gone)
        axes = [letter for letter in axes if letter in output]
    return call.transpose(x, [axes.index(letter) for letter in output])


Axes = list[str]


def _letters(equation: str, operands: tuple[Value, ...]) -> tuple[list[Axes], Axes]:
    """The axes of each operand and of the result, those that an ellipsis stands for as numbers."""
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(operands):
        raise ValueError(f"{equation} is for {len(texts)} operands")
    wide = 0
    inputs: list[Axes] = []
    for text, x in zip(texts, operands):
        hidden = x.type.rank - len(text.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in text):
            raise ValueError(f"{text} names the axes of {x.type}")
        inputs.append(_named(text, hidden))
        wide = max(wide, hidden)
    if arrow:
        return inputs, _named(right, wide)
    all_letters = "".join(texts).replace(".", "")
    once = sorted(c for c in set(all_letters) if all_letters.count(c) == 1)
    return inputs, [*(_named("...", wide) if "..." in left else []), *once]


def _named(text: str, hidden: int) -> Axes:
    before, dots, after = text.partition("...")
    ellipsis = [str(i) for i in range(hidden, 0, -1)] if dots else []  # 1 is the last of them
    return [*before, *ellipsis, *after]


def _diagonal(call: Call, x: Value, axes: Axes) -> tuple[Value, Axes]:
    """Of axes with one letter the elements at one place along both."""
    b = call.b
    for letter in set(axes):
        while axes.count(letter) > 1:
            first = axes.index(letter)
            second = axes.index(letter, first + 1)
            size, ones = x.shape[first], [1] * (x.type.rank - second - 1)
            row = call.reshape(b.iota(length=size), (size, *[1] * (x.type.rank - first - 1)))
            same = b.eq(row, call.reshape(b.iota(length=size), (size, *ones)))
            x = b.sum(b.where(same, x, call.number(0, x.dtype)), axes=(second,))
            axes = axes[:second] + axes[second + 1 :]
    return x, axes


def _product(
    call: Call, x: Value, xs: Axes, y: Value, ys: Axes, later: set[str]
) -> tuple[Value, Axes]:
    """The product of two operands, summed over what both have and nothing later names."""
    x, xs = _summed(call, x, xs, later | set(ys))
    y, ys = _summed(call, y, ys, later | set(xs))
    both = [a for a in xs if a in ys]
    batch, inner = [a for a in both if a in later], [a for a in both if a not in later]
    left, right = [a for a in xs if a not in both], [a for a in ys if a not in both]

    def arranged(v: Value, axes: Axes, *groups: Axes) -> Value:
        v = call.transpose(v, [axes.index(a) for group in groups for a in group])
        sizes = iter(v.shape)
        merged = [[next(sizes) for _ in group] for group in groups]
        return call.reshape(v, (*merged[0], *(product(group) for group in merged[1:])))

    sizes = dict(zip(ys, y.shape)) | dict(zip(xs, x.shape))
    result = matmul(call, arranged(x, xs, batch, left, inner), arranged(y, ys, batch, inner, right))
    shape = (*result.shape[: len(batch)], *(sizes[a] for a in (*left, *right)))
    return call.reshape(result, shape), [*batch, *left, *right]


def _summed(call: Call, x: Value, axes: Axes, kept: set[str]) -> tuple[Value, Axes]:
    gone = tuple(i for i, letter in enumerate(axes) if letter not in kept)
    x = call.b.sum(x, axes=gone) if gone else x
    return x, [letter for letter in axes if letter in kept]
