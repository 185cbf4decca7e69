"""The text of one kernel while it is written: nested blocks of lines, every expression named once.

Invariant: a name is defined in the outermost block where everything it depends on is defined, and
never outside an `if` it was asked for in.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...ir.dim import Dim, symbol
from ...ir.target import Target
from ...ir.types import f8e4m3, f8e5m2
from ..loops import Contract, LoopKernel, Sample
from ..templates.attention import Attention
from .float8 import FLOAT8
from .names import pointer_type
from .scalars import CHECKS, prelude


@dataclass
class Block:
    """Lines at one depth. `axes`: names of axes that take a new value in each turn of a loop."""

    parent: "Block | None" = None
    header: str = ""
    axes: frozenset[str] = frozenset()
    is_conditional: bool = False
    items: list["str | Block"] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # expression -> variable
    last: dict[str, None] = field(default_factory=dict)  # statements after all items, in order

    def lines(self, depth: int) -> Iterator[str]:
        """The text of the block."""
        for item in self.items:
            if isinstance(item, str):
                yield "    " * depth + item
            else:
                yield "    " * depth + item.header
                yield from item.lines(depth + 1)
        for statement in self.last:
            yield "    " * depth + statement


class Body:
    """The body of a kernel under construction."""

    def __init__(self, *, pdl: bool = False):
        self.pdl = pdl
        self.root = self.current = Block()
        self._count = 0
        self._waits = False

    @staticmethod
    def waiting(context: "Context") -> "Body":
        """One that lets the next kernel start, and waits for those before it."""
        body = Body(pdl=context.pdl)
        body.start_dependents()
        body.wait()
        return body

    def line(self, text: str) -> None:
        """A statement at the current place."""
        self.current.items.append(text)

    @contextmanager
    def block(
        self, header: str, axes: Iterable[str] = (), *, is_conditional: bool = False
    ) -> Iterator[None]:
        """An indented block: a loop over `axes`, or a conditional."""
        block = Block(self.current, header, frozenset(axes), is_conditional)
        self.current.items.append(block)
        self.current = block
        yield
        if not block.items:
            block.items.append("pass")
        self.current = block.parent or self.root

    def name(self, text: str, depends: frozenset[str] = frozenset(), prefix: str = "t") -> str:
        """A variable that holds `text`, which depends on the axes `depends`."""
        home = self._home(depends)
        block: Block | None = home
        while block is not None:
            if text in block.names:
                return block.names[text]
            block = block.parent
        variable = self.fresh(prefix)
        line = f"{variable} = {text}"
        if home is self.current:
            home.items.append(line)
        else:  # hoisted: before the block that is open, which is the last item
            home.items.insert(len(home.items) - 1, line)
        home.names[text] = variable
        return variable

    def at_end(self, text: str, depends: frozenset[str]) -> None:
        """A statement at the end of the block in which what depends on these axes is defined.

        Written there once, behind all loads: none waits for it.
        """
        self._home(depends).last[text] = None

    def _home(self, depends: frozenset[str]) -> Block:
        home = self.current
        while home.parent is not None and not home.is_conditional and not home.axes & depends:
            home = home.parent
        return home

    def fresh(self, prefix: str) -> str:
        """A variable nobody has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def start_dependents(self) -> None:
        """Let the next kernel's programs start where there is room. They wait before they read."""
        if self.pdl:
            self.line("tl.extra.cuda.gdc_launch_dependents()")

    def wait(self) -> None:
        """From here on memory that earlier kernels write may be touched.

        Every program must come by: a kernel that ends unwaited would be taken by its successor as a
        sign that its predecessors are done.
        """
        if self.pdl and not self._waits:
            self.line("tl.extra.cuda.gdc_wait()")
        self._waits = True


@dataclass(frozen=True)
class Emitted:
    """One launch: Triton source and all that compiling and launching it needs.

    `buffers` are parameters of the loop kernel by number, or workspaces by name, in the order of
    the kernel's arguments; `dims` follow them.
    """

    name: str
    source: str
    buffers: tuple[int | str, ...]
    dims: tuple[Dim, ...]
    signature: tuple[tuple[str, str], ...]  # argument -> type, as Triton spells it
    aligned: tuple[str, ...]  # arguments that are multiples of 16
    grid: tuple[Dim, Dim, Dim]
    num_warps: int
    num_stages: int
    pdl: bool
    fp_fusion: bool  # whether a * b + c may become one rounding


@dataclass(frozen=True)
class Context:
    """What emitting needs besides the kernel."""

    name: str
    target: Target
    pdl: bool = False  # programmatic dependent launch
    interpret: bool = False  # for Triton's interpreter, whose bf16 dot is wrong
    workspaces: tuple[str, ...] = ()  # names of the parameters past the kernel's own


def finish(
    kernel: LoopKernel,
    body: Body,
    context: Context,
    *,
    grid: tuple[Dim, ...],
    num_warps: int,
    num_stages: int = 3,
    helpers: str = "",
) -> Emitted:
    """The launch whose kernel is `body`, over all parameters and symbols of `kernel`."""
    own = len(kernel.params) - len(context.workspaces)
    buffers: list[int | str] = [*range(own), *context.workspaces]
    signature = [(f"p{i}", pointer_type(p.type.dtype)) for i, p in enumerate(kernel.params)]
    aligned = [name for name, _ in signature]
    for number, name in enumerate(kernel.symbols):
        argument = f"s{number}"  # by place, so that kernels alike but for a symbol's name are one
        signature.append((argument, symbol_type(kernel, name)))
        known = kernel.ranges.get(name)
        if known is not None and known.multiple % 16 == 0:
            aligned.append(argument)
    arguments = ", ".join(name for name, _ in signature)
    lines = [f"@triton.jit\ndef {context.name}({arguments}):", *body.root.lines(1)]
    uses_float8 = any(f"_{t}(" in line for t in (f8e4m3, f8e5m2) for line in lines)
    return Emitted(
        context.name,
        prelude(context.interpret)
        + ("" if kernel.records is None else CHECKS)
        + (FLOAT8 if uses_float8 else "")
        + helpers
        + "\n".join(lines)
        + "\n",
        tuple(buffers),
        tuple(symbol(s) for s in kernel.symbols),
        tuple(signature),
        tuple(aligned),
        (*grid, *(1,) * (3 - len(grid))),  # type: ignore[arg-type]
        num_warps,
        num_stages,
        context.pdl,
        # sums of products want it; a difference that the module computes means what it says
        isinstance(kernel.parts[0], Contract | Attention | Sample),
    )


def symbol_type(kernel: LoopKernel, name: str) -> str:
    """i32 where the symbol is proved to fit, else i64."""
    known = kernel.ranges.get(name)
    return "i32" if known is not None and known.hi is not None and known.hi < 2**31 else "i64"
