"""The text of one kernel while it is written: nested blocks of lines, every expression named once.

Invariant: a name is defined in the outermost block where everything it depends on is defined, and
never outside an `if` it was asked for in.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


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
