"""Walks an fx graph of ATen operations and builds ours, one table entry an operation.

Every result's type is inferred by our own rules and compared with what torch computed; that, for
symbolic dims, is the proof that an imported graph holds for every size in range.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..ir.builder import Builder
from ..ir.dim import Dim, Expr
from ..ir.errors import DimError, ShapeError, UnsupportedModel, UnsupportedOp
from ..ir.facts import Facts
from ..ir.graph import Value
from ..ir.progress import Progress, unwatched
from ..ir.types import DType, Shape, TensorType
from .declined import Declined
from .dtypes import as_declared, from_torch, promote
from .symbols import SymbolTable

_TORCH = Path(torch.__file__).parent

Scalar = bool | int | float | Expr
Handler = Callable[..., Any]

# name of an ATen overload -> how it is imported; the modules of `aten/` fill this and what follows
HANDLERS: dict[str, Handler] = {}
OF_NUMBERS: set[str] = set()
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
            HANDLERS[full] = handler
            OF_NUMBERS.update((full,) * of_numbers)
            MAY_FAIL.update((full,) * may_fail)
        return handler

    return register


def refuses(reason: str, *functions: str) -> None:
    """Enter Python functions of torch that are refused; `reason` says what they stand for."""

    def refuse(call: "Call", *_: Any, **__: Any) -> Any:
        raise Declined(reason)

    HANDLERS.update(dict.fromkeys(functions, refuse))


@dataclass
class Call:
    """One ATen call being imported: its builder, its expected result, and helpers for operands."""

    b: Builder
    importer: "Importer"
    node: fx.Node

    @property
    def expected(self) -> Any:
        """What torch computed for the result: a fake tensor, or a tuple of them."""
        return self.node.meta["val"]

    @property
    def dtype(self) -> DType:
        """Dtype of the (first) result."""
        value = self.expected
        value = value[0] if isinstance(value, tuple | list) else value
        return from_torch(value.dtype)

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

    def static(self, dim: Dim, what: str) -> int:
        """A dim that must be a number here."""
        if not isinstance(dim, int):
            raise Declined(f"{what} is {dim}: must be a known number")
        return dim


@dataclass
class _Missing:
    """Uses of one operation we cannot import."""

    reason: str
    count: int = 0
    first: str = ""


@dataclass
class Importer:
    """Imports one fx graph (and those it calls) into `builder`."""

    builder: Builder
    table: SymbolTable
    strip: str = ""  # prefix of module paths that is not the user's
    fallback: Handler | None = None  # what imports an operation that is in no table
    missing: dict[str, _Missing] = field(default_factory=dict)
    places: dict[Value, Value] = field(default_factory=dict)  # a mask -> where it is true

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

    def late_symbols(self, node: fx.Node) -> tuple[str, ...]:
        """Declare the sizes that only a run of `node` knows. -> the names of their dims."""
        names = tuple(map(self.table.declare_late, node.meta.get("unbacked_bindings") or ()))
        self.builder.symbols.update((name, self.table.symbols[name]) for name in names)
        self.facts = self.table.facts
        return names

    def raise_missing(self) -> None:
        """Raise `UnsupportedOp` with the table of everything that could not be imported."""
        if not self.missing:
            return
        rows = sorted(self.missing.items(), key=lambda item: (-item[1].count, item[0]))
        names = [name for name, _ in rows]
        width = max(len(name) for name in names)
        lines = [
            f"{name:{width}}  {row.count:4} x  first at {row.first}"
            + (f": {row.reason}" if row.reason else "")
            for name, row in rows
        ]
        total = sum(row.count for _, row in rows)
        raise UnsupportedOp(
            f"{len(rows)} unsupported operation{'s' * (len(rows) > 1)} in {total} places",
            facts="\n".join(lines),
            fix="replace them in the module by supported ones (docs/ops.md lists what there is)"
            + ("" if all(row.reason for _, row in rows) else _EAGER),
        )

    # ---- one node --------------------------------------------------------------------------

    def _import(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
        name = target_name(node.target)
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
        handler = HANDLERS.get(name, self.fallback)
        if handler is None:
            return self._miss(node, name, "")
        poisoned = False

        def load(n: fx.Node) -> Any:
            nonlocal poisoned
            poisoned = poisoned or env[n] is POISON
            return env[n]

        args, kwargs = fx.map_arg(node.args, load), fx.map_arg(node.kwargs, load)
        if poisoned:
            return POISON
        call = Call(self.builder, self, node)
        is_number = name in OF_NUMBERS and isinstance(args[0], Value) and args[0].type.rank == 0
        if is_number:
            args = [call.reshape(x, (1,)) if isinstance(x, Value) else x for x in args]
        try:
            self._require_sizes(node)
            with self.builder.at(self._loc(node, name)):
                result = handler(call, *_plain(args), **{k: _plain(v) for k, v in kwargs.items()})
                if is_number:
                    many = isinstance(result, tuple | list)
                    numbers = [call.reshape(x, ()) for x in (result if many else [result])]
                    result = tuple(numbers) if many else numbers[0]
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

    def _require_sizes(self, node: fx.Node) -> None:
        """Refuse numbers of data that may be negative where an operation takes sizes."""
        sizes = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.SymInt)]
        if not sizes or not isinstance(node.target, torch._ops.OpOverload):
            return
        arguments = node.target._schema.arguments
        given = dict(zip((a.name for a in arguments), node.args)) | node.kwargs
        for argument in arguments:
            if any(kind in str(argument.type) for kind in ("number", "Tensor")):
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
            if not isinstance(ours, Value) or not isinstance(theirs, torch.Tensor):
                continue
            shape = self.table.shape(theirs.shape)
            same = len(shape) == len(ours.shape) and all(
                a == b or self.facts.proved_eq(a, b) for a, b in zip(shape, ours.shape)
            )
            dtype = from_torch(theirs.dtype, place(node, self.strip))
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
        if name == "wrap_with_autocast" and node.args[2]:
            # the region itself has no line of its own: that of the first operation in it
            inside = env[cast(fx.Node, node.args[before])].graph.nodes
            first = next((n for n in inside if n.meta.get("stack_trace")), node)
            return self._miss(
                first, "torch.autocast", "it changes dtypes; cast in the module instead"
            )
        body = env[cast(fx.Node, node.args[before])]
        inner = dict(
            zip(
                (n for n in body.graph.nodes if n.op == "placeholder"),
                fx.map_arg(node.args[before + 1 :], lambda n: env[n]),
            )
        )
        return self.run(body.graph, body, inner)

    def _miss(self, node: fx.Node, name: str, reason: str) -> Any:
        row = self.missing.setdefault(name, _Missing(reason))
        row.count += 1
        row.first = row.first or place(node, self.strip)
        return POISON


_EAGER = "; or leave unknown ones to PyTorch: compile(..., options={'fallback': 'eager'})"
POISON = object()  # the value of an operation that could not be imported


def live_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that the output depends on."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live:
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def target_name(target: Any) -> str:
    """`aten.add.Tensor` for an ATen overload, the plain name for anything else."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return getattr(target, "__name__", None) or str(target)


def location(node: fx.Node, strip: str = "") -> str | None:
    """The path of the module a node comes from, such as `model.layers.0.self_attn`."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path = list(stack.values())[-1][0]
    return path.removeprefix(strip).strip(".") or None


def place(node: fx.Node, strip: str = "") -> str:
    """Module path and source line, for messages: the innermost line outside torch."""
    lines: list[str] = []
    users: list[str] = []
    for text in (node.meta.get("stack_trace") or "").splitlines():
        parts = text.split('"')
        # text in <> is the name of generated code: what torch makes of a branch or a loop's body
        if text.lstrip().startswith("File ") and len(parts) > 2 and not parts[1].startswith("<"):
            line = f"{Path(parts[1]).name}:{parts[2].split('line ')[-1].split(',')[0]}"
            lines.append(line)
            if not Path(parts[1]).is_relative_to(_TORCH):
                users.append(line)
    source = (users or lines or [""])[-1]
    where = location(node, strip) or ""
    return ", from ".join(part for part in (where, source) if part) or node.name


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
