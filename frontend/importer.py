"""Walks an fx graph of ATen operations and builds ours, one table entry an operation.

Every result's type is inferred by our own rules and compared with what torch computed; that, for
symbolic dims, is the proof that an imported graph holds for every size in range.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..ir.builder import Builder
from ..ir.dim import Dim, Expr
from ..ir.errors import DimError, ShapeError, UnsupportedModel
from ..ir.facts import Facts
from ..ir.graph import Value
from ..ir.progress import Progress, unwatched
from ..ir.types import DType, Shape, TensorType
from .declined import Declined, Refused
from .decompositions import taken_apart
from .dtypes import FROM_TORCH, as_declared, from_torch, promote
from .fx_nodes import live_nodes, location, place, target_name
from .in_place import plain_writes
from .missing import Missing
from .pairs import REAL_OF, Pair
from .symbols import SymbolTable

Scalar = bool | int | float | Expr
Handler = Callable[..., Any]

# name of an ATen overload -> how it is imported; the modules of `aten/` fill this and what follows
HANDLERS: dict[str, Handler] = {}
COMPLEX: dict[str, Handler] = {}  # the same where complex numbers are among operands or results
MAY_FAIL: set[str] = set()

_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def handles(
    *names: str, of_numbers: bool = False, may_fail: bool = False
) -> Callable[[Handler], Handler]:
    """Decorator: the function imports these overloads, given the `Call` and ATen's arguments.

    `of_numbers`: torch lets axis 0 of a number be named, our ops do not, so the function is given
    a vector of one element. `may_fail`: given unfit data the operation fails while it runs, and its
    error names the operation and its source line.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            full = name if name.count(".") >= 2 else f"aten.{name}"
            if full in HANDLERS:
                raise ValueError(f"{full} is in the table twice")
            HANDLERS[full] = _of_numbers(handler) if of_numbers else handler
            MAY_FAIL.update((full,) * may_fail)
        return handler

    return register


def _of_numbers(handler: Handler) -> Handler:
    def apply(call: "Call", x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Value) or x.type.rank:
            return handler(call, x, *args, **kwargs)
        given = [call.reshape(v, (1,)) if isinstance(v, Value) else v for v in (x, *args)]
        result = handler(call, *given, **kwargs)
        if isinstance(result, tuple | list):
            return tuple(call.reshape(v, ()) for v in result)
        return call.reshape(result, ())

    return apply


@dataclass
class Call:
    """One ATen call being imported: its builder, its expected result, and helpers for operands."""

    b: Builder
    importer: "Importer"
    node: fx.Node

    @property
    def target(self) -> Any:
        """The operation; the plain one where it writes in place, unseen."""
        return self.importer.plain.get(self.node, self.node.target)

    @property
    def expected(self) -> Any:
        """What torch computed for the result: a fake tensor, or a tuple of them."""
        return self.node.meta["val"]

    @property
    def dtype(self) -> DType:
        """Dtype of the (first) result; of its parts where it is complex."""
        value = self.expected
        value = value[0] if isinstance(value, tuple | list) else value
        return from_torch(REAL_OF.get(value.dtype, value.dtype))

    @property
    def shape(self) -> Shape:
        """Shape of the (first) result."""
        value = self.expected
        value = value[0] if isinstance(value, tuple | list) else value
        return self.importer.table.shape(value.shape)

    @property
    def facts(self) -> Facts:
        """Queries over dims."""
        return self.importer.facts

    def value(self, x: Value | Scalar, dtype: DType | None = None) -> Value:
        """An operand as a value of `dtype` (by default its own, or the result's for a number)."""
        if isinstance(x, Value):
            return x if dtype is None or x.dtype == dtype else self.b.cast(x, dtype=dtype)
        dtype = dtype or self.dtype
        if isinstance(x, Expr):
            return self.b.dim_value(value=x, dtype=dtype)
        if dtype.is_integer and isinstance(x, float) and not x.is_integer():
            raise Declined(f"the number {x} in an operation on {dtype}")
        return self.b.constant(as_declared(x, dtype), dtype)

    def parameter(self, x: Scalar, dtype: DType | None = None) -> Value:
        """A number of a formula, which torch's kernels keep unrounded whatever the dtype.

        A slope, an epsilon, the right side of a product; `value` rounds, as an operand would be.
        """
        dtype = dtype or self.dtype
        if isinstance(x, Expr | Value):
            return self.value(x, dtype)
        return self.b.constant(float(x), dtype) if dtype.is_float else self.value(x, dtype)

    def common_dtype(self, x: Value | Scalar, y: Value | Scalar) -> DType:
        """The dtype torch would compute in; a dim is an integer to it."""
        return promote(
            *(
                (v.dtype, v.type.rank) if isinstance(v, Value) else 1 if isinstance(v, Expr) else v
                for v in (x, y)
            )
        )

    def broadcast(self, x: Value, shape: Sequence[Dim]) -> Value:
        """X broadcast to shape; x itself when it has that shape."""
        return x if x.shape == tuple(shape) else self.b.broadcast_to(x, shape=tuple(shape))

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """X under another shape; x itself when it has that shape."""
        return x if x.shape == tuple(shape) else self.b.reshape(x, shape=tuple(shape))

    def reads(self, index: int) -> bool:
        """Whether anything uses this one of the results."""
        return any(user.args[1] == index and user.users for user in self.node.users)

    def static(self, dim: Dim, what: str) -> int:
        """A dim that must be a number here."""
        if not isinstance(dim, int):
            raise Refused(f"{what} is {dim}: must be a known number")
        return dim


@dataclass
class Importer:
    """Imports one fx graph (and those it calls) into `builder`."""

    builder: Builder
    table: SymbolTable
    strip: str = ""  # prefix of module paths that is not the user's
    takes_apart: bool = False  # whether those that are in no table are first taken apart by torch
    fallback: Handler | None = None  # what imports an operation that is in no table
    missing: Missing = field(default_factory=Missing)
    places: dict[Value, Value] = field(default_factory=dict)  # a mask -> where it is true
    plain: dict[fx.Node, Any] = field(default_factory=dict)  # what writes unseen -> what it is then

    def __post_init__(self) -> None:
        self.facts = self.table.facts

    def run(
        self,
        graph: fx.Graph,
        module: torch.nn.Module,
        env: dict[fx.Node, Any],
        progress: Progress = unwatched,
    ) -> tuple[Any, ...]:
        """Import the nodes that the output needs. `env` holds the placeholders' values."""
        live = live_nodes(graph)
        self.plain.update(plain_writes(graph))
        for number, node in enumerate(graph.nodes):
            progress("import", number, len(graph.nodes))
            if node.op == "output":
                results = fx.map_arg(node.args[0], lambda n: env[n])
                return tuple(results) if isinstance(results, (list, tuple)) else (results,)
            if node in env or node not in live:
                continue
            if node.op == "get_attr":
                env[node] = _attribute(module, str(node.target))
            elif node.op == "call_function":
                env[node] = self._import(node, env)
            else:
                raise AssertionError(f"an exported graph has no {node.op} nodes but inputs")
        raise AssertionError("an fx graph ends in an output")

    def late_symbols(self, node: fx.Node, most: Dim = 0) -> tuple[str, ...]:
        """Declare the sizes that only a run of `node` knows. -> the names of their dims."""
        symbols = node.meta.get("unbacked_bindings") or ()
        names = tuple(self.table.declare_in_range(symbol, most) for symbol in symbols)
        self.builder.symbols.update((name, self.table.symbols[name]) for name in names)
        self.facts = self.table.facts
        return names

    def raise_missing(self) -> None:
        """Raise `UnsupportedOp` with the table of everything that could not be imported."""
        fix = "replace them in the module by supported ones (docs/ops.md lists what there is)"
        self.missing.raise_all("operation", fix)

    # ---- one node --------------------------------------------------------------------------

    def _import(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
        target = self.plain.get(node, node.target)
        name = target_name(target)
        if name == "with_effects":  # torch keeps the order of checks of values: of which operation?
            name = target_name(node.args[1])
        if name in _INLINED:
            return self._inline(node, env, name)
        bindings = node.meta.get("unbacked_bindings")
        if isinstance(node.meta.get("val"), torch.SymBool) and not bindings:
            raise UnsupportedModel(
                "a truth value that depends on sizes is used as a value",
                where=place(node, self.strip),
                facts=f"it is {node.meta['val']}",
                fix="branch on it in Python, or compute it from tensors",
            )
        is_size = isinstance(node.meta.get("val"), torch.SymInt | int)
        if is_size and not bindings and not self.table.is_data(node.meta["val"]):
            return self.table.dim(node.meta["val"])
        if node.target is operator.getitem:
            container = env[node.all_input_nodes[0]]
            return POISON if container is POISON else container[node.args[1]]
        handler = (COMPLEX if _is_complex(node) else HANDLERS).get(name)
        if handler is None and self.takes_apart and (apart := taken_apart(node, target)):
            module, given = apart
            return self._inline_parts(node, module, [env[n] for n in given])
        if handler is None and self.fallback is None:
            return self._miss(node, name, "")
        poisoned = False

        def load(n: fx.Node) -> Any:
            nonlocal poisoned
            poisoned = poisoned or env[n] is POISON
            return env[n]

        args, kwargs = fx.map_arg(node.args, load), fx.map_arg(node.kwargs, load)
        if poisoned:
            return POISON
        args, kwargs = _plain(args), {k: _plain(v) for k, v in kwargs.items()}
        call = Call(self.builder, self, node)
        try:
            self._require_sizes(node)
            with self.builder.at(self._loc(node, name)):
                result = self._apply(handler, call, args, kwargs)
                if node in self.plain and isinstance(result, Value):
                    result = call.value(result, call.dtype)  # as it is written
        except Declined as reason:
            return self._miss(node, name, str(reason))
        except ShapeError as error:
            raise type(error)(
                f"{name}: {error.what}",
                where=place(node, self.strip),
                facts=error.facts,
                fix=error.fix or "this use was traced for other sizes; make its axes static",
            ) from error
        self._check(node, name, result)
        return result

    def _apply(
        self, handler: Handler | None, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """What the table's handler makes of the operation, else `fallback`. Declined by both."""
        if handler is None:
            assert self.fallback is not None, "what neither has was missed before"
            return self.fallback(call, *args, **kwargs)
        try:
            return handler(call, *args, **kwargs)
        except Refused:
            raise
        except (Declined, ShapeError) as reason:
            # where sizes vary, what our rules do not take may not be what torch takes at others
            is_proved = isinstance(reason, Declined) or not _has_symbols(call.node)
            if self.fallback is None or not is_proved:
                raise
            with suppress(Declined):
                return self.fallback(call, *args, **kwargs)
            raise reason

    def _require_sizes(self, node: fx.Node) -> None:
        """Refuse numbers of data that may be negative where an operation takes sizes.

        An index may be: it counts from the end.
        """
        sizes = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.SymInt)]
        if not sizes or not isinstance(node.target, torch._ops.OpOverload):
            return
        arguments = node.target._schema.arguments
        given = dict(zip((a.name for a in arguments), node.args)) | node.kwargs
        for argument in arguments:
            is_number = any(kind in str(argument.type) for kind in ("number", "Tensor"))
            if is_number or argument.name == "index":
                continue
            for n in pytree.tree_leaves(given.get(argument.name)):
                if n in sizes:
                    self.table.dim(n.meta["val"])  # raises for what is no size

    def _loc(self, node: fx.Node, name: str) -> str | None:
        if name in MAY_FAIL:
            return f"{name} in {place(node, self.strip)}"
        return location(node, self.strip)

    def _check(self, node: fx.Node, name: str, result: Any) -> None:
        expected = node.meta.get("val")
        pairs = (
            zip(result, expected)
            if isinstance(expected, tuple | list) and isinstance(result, tuple | list)
            else [(result, expected)]
        )
        for ours, theirs in pairs:
            ours = ours.real if isinstance(ours, Pair) else ours
            if not isinstance(ours, Value) or not isinstance(theirs, torch.Tensor):
                continue
            shape = self.table.shape(theirs.shape)
            same = len(shape) == len(ours.shape) and all(
                a == b or self.facts.proved_eq(a, b) for a, b in zip(shape, ours.shape)
            )
            real = REAL_OF.get(theirs.dtype, theirs.dtype)
            # to find a place takes longer than all else here
            dtype = FROM_TORCH.get(real) or from_torch(real, place(node, self.strip))
            if same and dtype == ours.dtype:
                continue
            raise DimError(
                f"{name}: the result's type is not proved",
                where=place(node, self.strip),
                facts=f"our rules give {ours.type}, torch traced {TensorType(shape, dtype)}",
                fix="make the axes of this operation static",
            )

    def _inline(self, node: fx.Node, env: Mapping[fx.Node, Any], name: str) -> Any:
        before = 1 if name == "wrap_with_set_grad_enabled" else 4
        body = env[cast(fx.Node, node.args[before])]
        return self._run_within(body, fx.map_arg(node.args[before + 1 :], lambda n: env[n]))

    def _inline_parts(self, node: fx.Node, module: fx.GraphModule, given: list[Any]) -> Any:
        if any(value is POISON for value in given):
            return POISON
        results = self._run_within(module, given)
        return results if isinstance(node.meta["val"], tuple | list) else results[0]

    def _run_within(self, module: Any, given: Sequence[Any]) -> tuple[Any, ...]:
        """What an inner graph gives, imported into the same builder."""
        inner = dict(zip(module.graph.find_nodes(op="placeholder"), given))
        return self.run(module.graph, module, inner)

    def _miss(self, node: fx.Node, name: str, reason: str) -> Any:
        self.missing.add(name, place(node, self.strip), reason)
        return POISON


POISON = object()  # the value of an operation that could not be imported


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    """What torch traced of a node's operands and results."""
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]


def _is_complex(node: fx.Node) -> bool:
    """Whether complex numbers are among a node's operands or results."""
    return any(tensor.is_complex() for tensor in _tensors(node))


def _has_symbols(node: fx.Node) -> bool:
    """Whether sizes of a node's operands or results are not known."""
    return any(isinstance(size, torch.SymInt) for t in _tensors(node) for size in t.shape)


def _plain(value: Any) -> Any:
    """Fx's immutable containers as tuples, so that handlers meet one kind."""
    if isinstance(value, list | tuple):
        return tuple(_plain(v) for v in value)
    return value


def _attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found
