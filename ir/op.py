"""How an op is declared, once: see `ir/ops/` for the declarations.

The Python signature is the declaration: positional parameters are operands (`*parts` any number,
`mask=None` optional), keyword-only ones are attributes with their types. The body is the type
rule: it gets `TensorType`s and returns one, or a tuple when the op has several results.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .combine import Combine, Contraction
from .errors import UnsupportedOp
from .scalar import (
    COMMUTATIVE,
    EXPENSIVE,
    Scalar,
    define,
    function_over,
    functions_of,
    parse_scalar,
)
from .types import TensorType

REQUIRED = inspect.Parameter.empty

# The families of ops that have a meaning of their own; a template may bring a further one.
#   elementwise  out[i] depends on in[i] (after broadcasting) only
#   view         a renaming of indices, no arithmetic
#   source       no tensor operand (iota, full)
#   reduce       collapses axes;  scan  a running reduction
#   gather       an index decides which element is read;  scatter  which is written
#   sort         puts the elements of an axis in order
#   contract     sums of products;  attention  a composite around two contractions
#   composite    must be decomposed before code is generated
#   state        consumes a state, its first operand, and returns its new value
#   sample       one row of scores to one choice
#   region       owns sub-graphs, and decides which of them runs and how often
#   call         a function outside generated code; its results' sizes may depend on data
KINDS = frozenset(
    "elementwise view source reduce scan gather scatter sort contract attention composite state"
    " sample region call".split()
)


def _setter(field_name: str, doc: str) -> Callable[["Op", Callable], Callable]:
    """A decorator, for use beside the declaration, that gives an op a function."""

    def set_function(self: "Op", function: Callable) -> Callable:
        setattr(self, field_name, function)
        return function

    set_function.__doc__ = f"Decorator: {doc}."
    return set_function


@dataclass(eq=False)
class Op:
    """A declared op. Compare by identity; `OPS` maps names to ops."""

    name: str
    kind: str
    doc: str
    operands: tuple[str, ...]
    num_optional: int
    is_variadic: bool
    attrs: Mapping[str, tuple[Any, Any]]  # name -> (annotation, default or REQUIRED)
    rule: Callable[..., TensorType | tuple[TensorType, ...]]
    scalar: str | None = None  # the value of one element, in the language of ir/scalar.py
    combine: Combine | None = None  # of a reduction or scan
    finish: str | None = None  # what a reduction makes of x, the combination of `count` elements
    contraction: Callable[..., Contraction] | None = None  # of a contraction, from its attributes
    fills: str | None = None  # the attribute that a view puts where it reads no operand
    is_whole: bool = True  # False, as of most composites: `decompose` takes it apart
    refusal: Callable[..., str | None] | None = None  # why no kernel takes it as it is
    decodes: bool = False  # makes numbers of codes, which may share bytes
    strided: tuple[str, ...] = ()  # operands of which its kernel reads any strided view of a buffer
    reference: Callable[..., Any] | None = None
    decomposition: Callable[..., Any] | None = None
    index_map: Callable[..., Any] | None = None
    inverse: Callable[..., tuple] | None = None
    axes: Callable[..., tuple] | None = None
    value_range: Callable[..., tuple] | None = None
    binds_value: bool = False  # the dim that it binds is what it gives, not a size of that
    limits: Callable[..., Sequence[tuple]] | None = None
    routine: str | None = None  # of a library, that a call of it runs

    @cached_property
    def tree(self) -> Scalar | None:
        """The scalar, parsed."""
        if self.scalar is None:
            return None
        return parse_scalar(self.scalar, self.operands, tuple(self.attrs))

    @cached_property
    def finish_tree(self) -> Scalar | None:
        """The finish, parsed."""
        return None if self.finish is None else parse_scalar(self.finish, ("x", "count"), ())

    @cached_property
    def cost(self) -> str:
        """What computing an element again costs: "free" (an index), "cheap" or "expensive"."""
        if self.tree is None:
            return {"view": "free", "source": "free", "gather": "cheap"}.get(self.kind, "expensive")
        return "expensive" if functions_of(self.tree) & EXPENSIVE else "cheap"

    @cached_property
    def is_commutative(self) -> bool:
        """Whether its two operands may change places."""
        return self.tree is not None and function_over(self.tree, self.operands) in COMMUTATIVE

    @cached_property
    def is_cast(self) -> bool:
        """Whether it is x in another dtype and nothing else."""
        return self.tree is not None and self.tree.fn == "arg"

    @property
    def is_renaming(self) -> bool:
        """Whether each element of the result is one of the operand's, of which there is one."""
        return self.kind == "view" and not self.is_variadic and self.fills is None

    @property
    def takes_packed(self) -> bool:
        """Whether operands may be of dtypes to store in: moved or converted, not computed with."""
        return self.decodes or self.kind in ("view", "gather") or self.is_cast

    @property
    def may_recompute(self) -> bool:
        """Whether a second copy of a node gives the same: no state, nothing outside the program."""
        return self.kind not in ("state", "call")

    set_reference = _setter("reference", "NumPy; arrays and attributes to an array or tuple")
    set_contraction = _setter("contraction", "what is multiplied with what, from the attributes")
    set_decomposition = _setter(
        "decomposition", "the same in simpler ops; takes a Builder, operands and attributes"
    )
    set_index_map = _setter(
        "index_map",
        "(at: IndexContext, index, *operand types, **attributes) -> Mapped: see ir/index_map.py",
    )
    set_inverse = _setter(
        "inverse",
        "of a one-to-one view: the index in the result of an index of x; takes Facts, the index,"
        " the type of x and attributes",
    )
    set_axes = _setter("axes", "where axes lie, from operand types and attributes: see ir/axes.py")
    set_refusal = _setter(
        "refusal", "why no kernel takes it as it is (None: one does), from types and attributes"
    )
    set_range = _setter(
        "value_range",
        "between which dims all elements lie, from operand types and attributes: of several results"
        " a pair each",
    )
    set_limits = _setter(
        "limits",
        "pairs of dims of which the first is no more than the second, or the graph is refused; from"
        " operand types and attributes",
    )

    def check_arity(self, count: int) -> str | None:
        """What is wrong with `count` operands, None when nothing is."""
        if self.is_variadic:
            return None if count >= 1 else "needs at least one operand"
        least = len(self.operands) - self.num_optional
        if least <= count <= len(self.operands):
            return None
        expected = str(least) if not self.num_optional else f"{least} to {len(self.operands)}"
        return f"takes {expected} operands ({', '.join(self.operands)}), got {count}"

    def __repr__(self) -> str:
        return f"<op {self.name}>"


OPS: dict[str, Op] = {}


def op(
    function: Callable | None = None, *, kind: str = "", name: str = "", doc: str = "", **facts: Any
):
    """Decorator that declares an op; see the module docstring. `facts` are fields of `Op`.

    `scalar` makes the op elementwise and complete: its value, reference and generated code all
    come from that expression. `combine` does the same for a reduction or a scan. `name` and `doc`
    are those of the function unless given: one rule may be that of several ops.
    """

    def declare(rule: Callable) -> Op:
        resolved = kind or ("elementwise" if "scalar" in facts else "")
        if not resolved:
            raise ValueError(f"op {rule.__name__} needs a kind: {', '.join(sorted(KINDS))}, or new")
        operands, optional, variadic, attrs = [], 0, False, {}
        for parameter in inspect.signature(rule).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                attrs[parameter.name] = (parameter.annotation, parameter.default)
            else:
                variadic = variadic or parameter.kind is parameter.VAR_POSITIONAL
                optional += parameter.default is None
                operands.append(parameter.name)
        declared = Op(
            name=(name or rule.__name__).rstrip("_"),
            kind=resolved,
            doc=doc or inspect.getdoc(rule) or "",
            operands=tuple(operands),
            num_optional=optional,
            is_variadic=variadic,
            attrs=attrs,
            rule=rule,
            **{"is_whole": resolved != "composite", **facts},
        )
        if declared.name in OPS:
            raise ValueError(f"op {declared.name} is declared twice")
        OPS[declared.name] = declared
        if declared.scalar is not None and not attrs:
            define(declared.name, declared.operands, declared.scalar)
        return declared

    return declare(function) if function is not None else declare


def get_op(name: str) -> Op:
    """The op called `name`; UnsupportedOp suggests near names."""
    if name not in OPS:
        from difflib import get_close_matches

        near = get_close_matches(name, OPS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see docs/ops.md for the list"
        raise UnsupportedOp(f"no op named {name!r}", fix=hint)
    return OPS[name]


def broadcast(*types: TensorType) -> TensorType:
    """The common type of operands under NumPy broadcasting; dtypes must be equal."""
    if any(t.dtype != types[0].dtype for t in types):
        raise TypeError(f"dtypes differ: {', '.join(str(t) for t in types)}; cast one of them")
    return types[0].with_shape(broadcast_shapes(*(t.shape for t in types)))


def broadcast_shapes(*shapes: Sequence) -> tuple:
    """NumPy broadcasting of shapes; a dim that is not the literal 1 is never taken for 1."""
    rank = max(len(shape) for shape in shapes)
    result = []
    for axis in range(rank):
        dim: Any = 1
        for shape in shapes:
            at = axis - rank + len(shape)
            other = shape[at] if at >= 0 else 1
            if dim == 1:
                dim = other
            elif other != 1 and other != dim:
                shown = ", ".join(f"[{', '.join(map(str, s))}]" for s in shapes)
                raise TypeError(f"shapes {shown} do not broadcast: {dim} and {other}")
        result.append(dim)
    return tuple(result)


def normalize_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front; TypeError when there is no such axis."""
    if not -rank <= axis < rank:
        raise TypeError(f"axis {axis} of a value of rank {rank}")
    return axis % rank
