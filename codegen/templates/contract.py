"""Kernels around one contraction: prologue on the operands, accumulators, epilogue."""

from collections.abc import Sequence

from ...ir.dim import Dim, product
from ...ir.errors import UnsupportedOp
from ...ir.graph import Node, Value
from ...ir.indexing import delinearize, linearize
from ...ir.op import get_op
from ...ir.scalar import parse_scalar
from ...ir.target import Target
from ...ir.types import DType, f32
from ..forward import forward_index, path_between
from ..inline import Inliner, broadcast_index, build_scalar
from ..loops import (
    SUM,
    Apply,
    Axis,
    Const,
    Contract,
    Element,
    LoopKernel,
    Reduction,
    Ref,
    Store,
    accumulated,
    accumulator_of,
)
from .contract_schedules import contract_defaults
from .template import Bucket, Template

_PASSES_SCALE = ("reshape", "transpose", "cast")  # what may stand between an rms_norm and x


class ContractTemplate(Template):
    """One contraction, with what is computed of its operands and of its result."""

    name = "contract"
    kinds = frozenset(("contract",))
    parts = (Contract,)

    def keeps(self, node: Node) -> bool:
        """An rms_norm: it is folded into the loop."""
        return node.op.name == "rms_norm"

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Contract]:
        anchors = [n for n in nodes if n.op.kind == "contract"]
        if len(anchors) != 1:
            raise UnsupportedOp(
                f"{len(anchors)} contractions in one kernel", fix="partition them apart"
            )
        return (_ContractLowering(inliner, nodes, anchors[0]).lower(outputs),)

    def points(self, part: Contract) -> Dim:
        return product(a.extent for a in (*part.batch, part.m, part.n))

    def operations(self, part: Contract) -> Dim:
        """The products alone."""
        return 2 * len(part.ws) * self.points(part) * part.k.extent

    def products(self, part: Contract) -> tuple[DType, DType]:
        return part.x_dtype, part.w_dtype

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        return contract_defaults(kernel, target)


class _ContractLowering:
    def __init__(self, inliner: Inliner, nodes: Sequence[Node], anchor: Node):
        self.inliner = inliner
        self.nodes = nodes
        self.anchor = anchor
        self.result = anchor.results[0]
        self.x, *self.ws = anchor.operands
        *batch, m, n = self.result.shape
        k = self.x.shape[-1]
        # one weight for all rows: leading axes of x are rows too
        flat = all(d == 1 for w in self.ws for d in w.shape[:-2])
        if flat:
            rows = (*batch, m)
            self.batch: tuple[Axis, ...] = ()
            self.m = Axis("_m", product(rows))
            at = inliner.axis("_m", self.m.extent)
            self.rows = delinearize(at, rows, inliner.facts)
        else:
            index = [inliner.axis(f"_b{i}", d) for i, d in enumerate(batch)]
            self.batch = tuple(Axis(f"_b{i}", d) for i, d in enumerate(batch) if d != 1)
            self.m = Axis("_m", m)
            self.rows = (*index, inliner.axis("_m", m))
        self.n, self.k = Axis("_n", n), Axis("_k", k)
        self.n_at, self.k_at = inliner.axis("_n", n), inliner.axis("_k", k)
        self.stats: list[Reduction] = []
        self.scale: Element | None = None

    def lower(self, outputs: list[Value]) -> Contract:
        x = self.lower_x()
        ws = tuple(self.lower_w(w) for w in self.ws)
        acc = self.accumulators(len(ws))
        index = (*self.rows, self.n_at)

        def result(at: tuple[Dim, ...]) -> Element:
            if at != index:
                raise UnsupportedOp(
                    "an epilogue reads the product at another place than it stores",
                    where=self.anchor.loc or "",
                    facts=f"at {index} it reads {at}",
                    fix="partition the reader into another group",
                )
            return acc

        self.inliner.bound[self.result] = result
        self.inliner.forget()
        stores = tuple(self.store(output, index) for output in outputs)
        return Contract(
            self.batch,
            self.m,
            self.n,
            self.k,
            x,
            ws,
            tuple(self.stats),
            stores,
            _stored_dtype(self.inliner, self.x),
            _stored_dtype(self.inliner, self.ws[0]),
        )

    def lower_x(self) -> Element:
        norm = self.find_norm()
        if norm is not None:
            self.bind_norm(norm)
        index = broadcast_index((*self.rows, self.k_at), self.x.type)
        element = self.inliner.element(self.x, index)
        if norm is not None:  # outside the loop over k the norm has no meaning
            del self.inliner.bound[norm.results[0]]
            self.inliner.nodes.discard(norm)
        return element

    def find_norm(self) -> Node | None:
        norms = [n for n in self.nodes if n.op.name == "rms_norm"]
        if not norms:
            return None
        value = self.x
        while self.inliner.is_inside(value) and value.node.op.name in _PASSES_SCALE:
            value = value.node.operands[0]
        norm = norms[0]
        if (
            len(norms) > 1
            or value is not norm.results[0]
            or norm.operands[0].shape[-1] != self.k.extent
        ):
            raise UnsupportedOp(
                "an rms_norm in this kernel is not the input of its contraction",
                where=norm.loc or "",
                facts=f"norm of {norm.operands[0].type}, contraction of {self.x.type}",
                fix="partition the norm into a group of its own",
            )
        return norm

    def bind_norm(self, norm: Node) -> None:
        """(x / rms(x) * g) @ w  ->  ((x * g) @ w) / rms(x): the row's scale follows the sum."""
        source, weight = norm.operands

        def scaled(index: tuple[Dim, ...]) -> Element:
            element = self.inliner.element(source, index)
            dtype = element.dtype
            square = Apply("mul", (element, element), dtype)
            self.stats = [Reduction("stat0", SUM, square)]
            count = max(_known(self.k.extent, norm), 1)  # over nothing any finite scale will do
            mean = Apply("mul", (Ref("stat0", dtype), Const(1.0 / count, dtype)), dtype)
            shifted = Apply("add", (mean, Const(norm.attrs["eps"], dtype)), dtype)
            self.scale = Apply("rsqrt", (shifted,), dtype)
            return Apply("mul", (element, self.inliner.element(weight, (index[-1],))), dtype)

        self.inliner.bound[norm.results[0]] = scaled

    def lower_w(self, w: Value) -> Element:
        last = (self.n_at, self.k_at)
        if self.anchor.op.name == "matmul" and not self.anchor.attrs["transpose_w"]:
            last = (self.k_at, self.n_at)
        batch = broadcast_index((*self.rows[:-1], *last), w.type)
        # tiles know where a packed weight's rows are; other sums read it element by element
        self.inliner.keep_plain = accumulator_of(w.dtype) == f32
        try:
            return self.inliner.element(w, batch)
        finally:
            self.inliner.keep_plain = False

    def accumulators(self, count: int) -> Element:
        accs = [accumulated(f"acc{i}", self.x.dtype) for i in range(count)]
        dtype = accs[0].dtype
        if self.scale is not None:
            accs = [Apply("mul", (a, self.scale), dtype) for a in accs]
        if self.anchor.op.name == "matmul":
            return accs[0]
        activation = get_op(self.anchor.attrs["activation"])
        tree = parse_scalar(activation.scalar, activation.operands, ())
        return Apply("mul", (build_scalar(tree, {"x": accs[0]}, {}, dtype), accs[1]), dtype)

    def store(self, output: Value, index: tuple[Dim, ...]) -> Store:
        inliner = self.inliner
        path = path_between(inliner, self.result, output)
        if path is None:
            raise UnsupportedOp(
                "an output of a contraction's kernel does not depend on the contraction",
                where=output.node.loc or "",
                fix="partition it into another group",
            )
        at = forward_index(inliner, path, self.result, index)
        value = inliner.element(output, at)
        offset = linearize(at, output.shape)
        return Store(inliner.param(output, is_written=True), offset, value)


def _known(extent: Dim, norm: Node) -> int:
    if not isinstance(extent, int):
        raise UnsupportedOp(
            f"rms_norm over a dynamic axis ({extent}) feeds a contraction",
            where=norm.loc or "",
            fix="partition the norm into its own group",
        )
    return extent


def _stored_dtype(inliner: Inliner, value: Value) -> DType:
    """The dtype in which an operand lies in memory, through casts and views of one source.

    Up to casts that change what its products are added in: those of i8 as i32 may be made of the
    bytes, those as f32 or as i64 may not.
    """
    dtype = value.dtype
    while inliner.is_inside(value) and value.node.op.name in (
        *_PASSES_SCALE,
        "broadcast_to",
        "slice",
    ):
        value = value.node.operands[0]
        if accumulator_of(value.dtype) != accumulator_of(dtype) or value.dtype.is_packed:
            break
        if value.dtype.bits < dtype.bits:
            dtype = value.dtype
    return dtype
