"""Reads attention written in primitive ops: softmax(mask(cap(scale * q k^T))) v."""

from dataclasses import dataclass

from ..ir.graph import Node, Value
from ..ir.op import normalize_axis
from ..ir.types import Shape, bool_
from .patterns import constant_of

LOW = -1e4  # what is filled in for a score that is not seen is this or below
LOWEST = -1e30
MAX_DEPTH = 16  # ops between softmax and the product


@dataclass(frozen=True)
class MaskStep:
    """One mask of the scores: `add` a float one, `keep` or `drop` where a flag is not 0."""

    kind: str
    mask: Value
    fill: float = 0.0


@dataclass(frozen=True)
class Written:
    """Attention found in primitive ops. `inside` are the nodes from softmax to the product.

    k is [..., T, D] when `is_transposed` (the product transposes it), else [..., D, T].
    """

    q: Value
    k: Value
    v: Value
    is_transposed: bool
    scale: float
    softcap: float | None
    masks: tuple[MaskStep, ...]
    scores: Shape  # of the scores, masked: [..., heads, queries, keys]
    is_guarded: bool  # NaN, which a row that sees nothing gives, is replaced by 0
    inside: tuple[Node, ...]


def read_attention(node: Node) -> Written | str | None:
    """What `node`, the product with v, computes.

    None when no softmax is before it; a text says why it is not attention all the same.
    """
    if node.op.name != "matmul" or node.attrs["transpose_w"]:
        return None
    return _Reader(node).read()


class _Reader:
    """Walks from the product with v up to the product of q and k."""

    def __init__(self, node: Node):
        self.node = node
        self.inside: list[Node] = []
        self.shape: Shape = ()  # of the scores
        self.is_guarded = False

    def read(self) -> Written | str | None:
        weights, values = self.node.operands
        scores = self.softmax(weights)
        if scores is None:
            return None
        self.shape = scores.shape
        masks: list[MaskStep] = []
        while True:
            scores = self.plain(scores)
            step = self.mask(scores)
            if step is None:
                break
            mask, scores = step
            masks.append(mask)
        scores, softcap = self.softcap(scores)
        scores, scale = self.scale(self.plain(scores))
        product = self.plain(scores).node
        if product is None or product.op.name != "matmul":
            return "what softmax reads is not a product, scaled, capped and masked in this order"
        q, k = product.operands
        if min(q.type.rank, k.type.rank, values.type.rank, len(self.shape)) < 3:
            return f"q is {q.type}, k is {k.type}, v is {values.type}: no axis of heads"
        self.inside.append(product)
        return Written(
            q,
            k,
            values,
            product.attrs["transpose_w"],
            scale,
            softcap,
            tuple(masks),
            self.shape,
            self.is_guarded,
            tuple(self.inside),
        )

    def softmax(self, weights: Value) -> Value | None:
        """What the softmax behind `weights` reads; a cast or a guard against NaN may be between."""
        node = self.plain(weights).node
        if node is not None and node.op.name == "where":
            condition, fill, kept = node.operands
            asks = condition.node
            if asks is not None and asks.op.name == "isnan" and asks.operands[0] is kept:
                if constant_of(fill) == 0:
                    self.inside += [node, asks]
                    self.is_guarded = True
                    node = kept.node
        if node is None or node.op.name != "softmax":
            return None
        rank = node.operands[0].type.rank
        if normalize_axis(node.attrs["axis"], rank) != rank - 1:
            return None
        self.inside.append(node)
        return node.operands[0]

    def plain(self, value: Value) -> Value:
        """`value` without what changes no score.

        That is casts between float dtypes, added or dropped axes of 1, and a floor so low that
        only what a mask hides reaches it.
        """
        while (node := value.node) is not None:
            is_cast = node.op.name == "cast" and node.operands[0].dtype.is_float
            if is_cast or _only_ones_differ(node):
                below = node.operands[0]
            elif (floored := _above_floor(node)) is not None:
                below = floored
            else:
                break
            self.inside.append(node)
            value = below
            if value.type.rank > len(self.shape):
                self.shape = value.shape  # masks are over the form with the most axes
        return value

    def mask(self, value: Value) -> tuple[MaskStep, Value] | None:
        """add(scores, m), where(c, scores, low), where(c, low, scores)  ->  the mask, the scores

        And scores * c + low * (1 - c), of a c of 0 and 1.
        """
        node = value.node
        if node is None:
            return None
        if node.op.name == "add":
            for scores, other in (node.operands, node.operands[::-1]):
                if scores.node is None or not _has_product(scores):
                    continue
                if (hidden := _filled(scores.node, other.node)) is not None:
                    self.inside += [node, scores.node]
                    return hidden
                if not _has_product(other):
                    self.inside.append(node)
                    return MaskStep("add", other), scores
        if node.op.name == "where":
            condition, x, y = node.operands
            for kind, scores, fill in (("keep", x, y), ("drop", y, x)):
                low = constant_of(fill)
                if low is not None and low <= LOW and _has_product(scores):
                    self.inside.append(node)
                    return MaskStep(kind, condition, low), scores
        return None

    def softcap(self, value: Value) -> tuple[Value, float | None]:
        """c * tanh(s / c)  ->  s, c"""
        node = value.node
        if node is None or node.op.name != "mul":
            return value, None
        for capped, factor in (node.operands, node.operands[::-1]):
            cap, tanh = constant_of(factor), capped.node
            if cap is None or tanh is None or tanh.op.name != "tanh":
                continue
            divided = tanh.operands[0].node
            if divided is None:
                continue
            divisor = divisor_of(divided)
            if divisor is not None and abs(divisor[1] - cap) <= 1e-6 * abs(cap):
                self.inside += [node, tanh, divided]
                return divisor[0], float(cap)
        return value, None

    def scale(self, value: Value) -> tuple[Value, float]:
        """s * c, s / c  ->  s, the factor"""
        scale = 1.0
        while (node := value.node) is not None:
            found = divisor_of(node)
            if found is None:
                break
            self.inside.append(node)
            value, divisor = found
            scale = scale / divisor if node.op.name == "div" else scale * (1 / divisor)
            value = self.plain(value)
        return value, scale


def _filled(left: Node, right: Node | None) -> tuple[MaskStep, Value] | None:
    """scores * c + low * (1 - c), of a c of 0 and 1  ->  the mask, the scores"""
    if right is None or not left.op.name == right.op.name == "mul":
        return None
    for scores, seen in (left.operands, left.operands[::-1]):
        for factor, unseen in (right.operands, right.operands[::-1]):
            low, rest = constant_of(factor), unseen.node
            if low is None or low > LOW or rest is None or rest.op.name != "sub":
                continue
            if constant_of(rest.operands[0]) == 1 and rest.operands[1] is seen and _is_flag(seen):
                return MaskStep("keep", seen, low), scores
    return None


def _is_flag(value: Value) -> bool:
    """Whether `value` is a bool as 0 and 1, behind views."""
    node = value.node
    while node is not None and node.op.is_renaming:
        node = node.operands[0].node
    return node is not None and node.op.is_cast and node.operands[0].dtype is bool_


def _only_ones_differ(node: Node) -> bool:
    if node.op.name != "reshape":
        return False
    before, after = node.operands[0].shape, node.results[0].shape
    return [d for d in before if d != 1] == [d for d in after if d != 1]


def _above_floor(node: Node) -> Value | None:
    """x of maximum(x, the lowest number there is, or nearly)."""
    if node.op.name == "maximum":
        for x, floor in (node.operands, node.operands[::-1]):
            number = constant_of(floor)
            if number is not None and number <= LOWEST and x.type == node.results[0].type:
                return x
    return None


def divisor_of(node: Node) -> tuple[Value, float] | None:
    """x and d when the node is x / d or x * (1 / d), d a number other than 0."""
    if node.op.name == "div":
        number = constant_of(node.operands[1])
        return (node.operands[0], float(number)) if number else None
    if node.op.name == "mul":
        for x, factor in (node.operands, node.operands[::-1]):
            number = constant_of(factor)
            if number:
                return x, 1 / float(number)
    return None


def _has_product(value: Value, depth: int = MAX_DEPTH) -> bool:
    node = value.node
    if node is None or depth == 0:
        return False
    if node.op.name == "matmul":
        return True
    if node.op.kind != "elementwise" and not _only_ones_differ(node):
        return False
    return any(_has_product(v, depth - 1) for v in node.operands)
