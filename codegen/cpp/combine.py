"""A combine as a C++ struct: of what comes earlier and what comes later, in that order."""

from dataclasses import dataclass

from ...ir.combine import Combine
from ...ir.types import DType, bool_
from ..inline import combination
from ..loops import LoopKernel, Ref
from .elements import Scope, value_type
from .scalars import constant, convert

_ON_VECTORS = {"add": "TwAdd", "mul": "TwMul", "maximum": "TwMax", "minimum": "TwMin"}


@dataclass(frozen=True)
class Combined:
    """The struct's name, and its lines: none where tw_scan.h has it."""

    struct: str
    lines: tuple[str, ...] = ()

    @property
    def on_vectors(self) -> bool:
        """Whether `combine` takes vectors as well as numbers."""
        return not self.lines


def combined(kernel: LoopKernel, combine: Combine, dtype: DType, name: str) -> Combined:
    """The combine over elements of `dtype`; a struct of its own is called after `name`."""
    if combine.function in _ON_VECTORS and dtype != bool_:
        return Combined(_ON_VECTORS[combine.function])
    lines = combine_struct(kernel, combine, dtype, dtype, f"{name}_combine")
    return Combined(f"{name}_combine", tuple(lines))


def combine_struct(
    kernel: LoopKernel, combine: Combine, of: DType, dtype: DType, name: str
) -> list[str]:
    """Lines of a struct `name` that combines elements of `of` in `dtype`."""
    scope = Scope(kernel, (), {n: (n, frozenset()) for n in "xy"})
    made = combination(combine, Ref("x", dtype), Ref("y", dtype))
    result = convert(scope.emit(made), made.dtype, dtype)
    return [
        f"struct {name} {{",
        f"    typedef {value_type(dtype)} V;",
        f"    static V identity() {{ return {constant(combine.identity_of(of), dtype)}; }}",
        "    TW_INLINE V combine(V x, V y) {",
        *("        " + line for line in scope.lines),
        f"        return {result};",
        "    }",
        "};",
        "",
    ]
