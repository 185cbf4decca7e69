"""What a template is: how groups of one kind become parts of kernels, their cost, their schedules.

A template is one file here; each language adds a printer of its part (`cpp/emit.py`,
`triton/emit.py`). docs/adding_a_template.md adds one.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from ...ir.dim import Dim, product
from ...ir.errors import BuildError
from ...ir.facts import Facts
from ...ir.graph import Node, Value
from ...ir.target import Target
from ...ir.types import DType
from ..elements import walk
from ..groups import Group, Groups, squeezed
from ..inline import Inliner
from ..loops import Apply, Axis, Load, LoopKernel, Part


class Schedule:
    """What is chosen of a kernel's tiling: a frozen dataclass, with its domain.

    `domain` gives the allowed values of each field; a field that is not in it takes any.
    """

    domain: ClassVar[Mapping[str, Collection[Any]]] = {}

    def __post_init__(self):
        for name, allowed in self.domain.items():
            if getattr(self, name) not in allowed:
                raise BuildError(
                    f"{name}={getattr(self, name)} is outside the domain of {type(self).__name__}",
                    facts=f"allowed: {', '.join(map(str, allowed))}",
                )


WARPS = (1, 2, 4, 8, 16)  # values of `num_warps` and `num_stages` in domains
STAGES = range(1, 9)

ROOMY = 128 * 1024  # bytes of shared memory that hold three or more stages of large tiles


def has_room(target: Target) -> bool:
    """Whether loads may run several stages ahead: past the registers, and with room to lie in."""
    return target.has_async_copies and target.shared_bytes >= ROOMY


Bucket = tuple[int, int | None, Schedule]  # for lo <= size (<= hi when given)


class Template:
    """A kind of kernel. A group belongs to the first template that one of its nodes is a kind of.

    `name` is that of its kernels, `kinds` are those of the ops that make a group one of it, `parts`
    the classes of part that it lowers to.
    """

    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]]
    parts: ClassVar[tuple[type[Part], ...]]
    # which of its readers a group is offered: those over the same "elements", over the same "rows",
    # "anything" that reads the same values, "views" that alone read it, or "nothing"
    grows_over: ClassVar[str] = "nothing"

    # ---- what is in a group ----

    def why_not(self, group: Group, node: Node) -> str | None:
        """Why `node` cannot be computed in the group's kernel; None where it can.

        The node is the group's anchor itself, or reads what the group computes, or is read by it.
        Nothing else decides what a group may hold: `lower` takes what was let in.
        """
        return None if node is group.anchor else f"{group.anchor.op.name} stands alone"

    def why_not_stored(self, group: Group, node: Node) -> str | None:
        """Why the kernel cannot store what a node of the group computes; None where it can."""
        return None

    def stored_operand(self, groups: Groups, node: Node, number: int) -> Value | None:
        """What is stored before the kernel of the anchor `node` runs, to be read as it lies.

        That is operand `number` or what it is a view of; None where the kernel may make it itself.
        """
        return None

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Part, ...]:
        """The parts that store `outputs`; composites among the nodes are taken apart already."""
        raise NotImplementedError

    # ---- cost ----

    def points(self, part: Any) -> Dim:
        """Points of the part's iteration space: how often an element is read through an index.

        Those of rows and an axis; a part over other axes has its own.
        """
        return product(a.extent for a in (*part.rows, part.axis))

    def operations(self, part: Any) -> Dim:
        """Arithmetic operations: a multiply-add counts 2, any other function 1."""
        return sum(isinstance(item, Apply) for item in walk(part)) * self.points(part)

    def products(self, part: Any) -> tuple[DType, ...]:
        """The dtypes of the two operands whose products the operations are, where they are."""
        return ()

    def unsized(self, part: Any) -> frozenset[int]:
        """Parameters of which the bytes read are no function of dims: left out of `traffic`."""
        return frozenset()

    def touched(self, part: Any) -> dict[int, Dim]:
        """Elements read, at most, of parameters of which the part reads a choice."""
        return {}

    def traffic(self, kernel: LoopKernel) -> Dim:
        """Bytes: every parameter once. Of one read through an index, only what the loop can touch.

        States that are written in place, and what is `unsized`, are left out.
        """
        left_out: set[int | None] = {kernel.records}  # written for faults only
        gathered: dict[int, Dim] = {}
        for part in kernel.parts:
            left_out |= self.unsized(part)
            for item in walk(part):
                if isinstance(item, Load) and item.indirect:
                    gathered[item.param] = self.points(part)
                elif getattr(item, "guard", None) is not None:
                    left_out.add(item.param)
            gathered |= self.touched(part)
        total: Dim = 0
        for number, param in enumerate(kernel.params):
            if number not in left_out:
                elements, dtype = param.type.numel, param.type.dtype
                if number in gathered:
                    elements, dtype = gathered[number], param.packed or dtype
                total = total + dtype.size(elements)
        return total

    # ---- schedules ----

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        """(size, buckets): which schedule for which values of the size; the buckets cover it.

        Depends on the kernel and the target only, so a program built twice is the same program.
        """
        raise NotImplementedError


def orders_elements(group: Group, node: Node) -> str | None:
    """Why a view is not the group's elements in another order, each once."""
    while node not in group.nodes:
        if node.op.inverse is None or node.operands[0].node is None:
            return f"{node.op.name} is stored by a kernel of its own"
        node = node.operands[0].node
    return None


def follows_elements(group: Group, node: Node) -> str | None:
    """Why a reader is not over the elements that the group computes, one by one."""
    if node.op.kind == "view":
        return orders_elements(group, node)
    if node.op.kind != "elementwise":
        return f"a {node.op.kind} op follows in a kernel of its own"
    for value in filter(group.makes, node.operands):
        if squeezed(node.results[0].shape) != squeezed(value.shape):
            return f"{node.op.name} broadcasts what it reads"
        if group.groups.same_elements(value) is None:
            return "it also reads the product at other places"
    return None


class SurroundedTemplate(Template):
    """One node, with what is computed before and after it element by element.

    What comes before must be cheap: such kernels compute it more than once.
    """

    grows_over = "elements"

    def why_not(self, group: Group, node: Node) -> str | None:
        if node is group.anchor:
            return None
        if group.follows(node):
            return follows_elements(group, node)
        is_cheap = node.op.kind == "elementwise" and node.op.cost != "expensive"
        return None if is_cheap else f"{node.op.name} before a {self.name}"


def declare_axes(
    inliner: Inliner, shape: Sequence[Dim]
) -> tuple[tuple[Axis, ...], tuple[Dim, ...]]:
    """An axis for each dim of `shape`, and the full index: 0 along those of size 1."""
    axes = tuple(Axis(f"_i{i}", d) for i, d in enumerate(shape))
    return axes, tuple(inliner.axis(a.name, a.extent) for a in axes)


def settled(size: Dim, table: list[Bucket], facts: Facts) -> tuple[Dim, list[Bucket]]:
    """What `defaults` gives: the buckets of `table` that the size can fall into.

    Where only one is left it is for any size.
    """
    buckets = clip(table, facts, size)
    if len(buckets) == 1:
        return 0, [(0, None, buckets[0][2])]
    return size, buckets


def clip(table: list[Bucket], facts: Facts, size: Dim) -> list[Bucket]:
    """The buckets that the size can fall into."""
    low, high = facts.bounds(size)
    return [
        (lo, hi, schedule)
        for lo, hi, schedule in table
        if (high is None or lo <= high) and (low is None or hi is None or hi >= low)
    ]


def merged(table: list[Bucket]) -> list[Bucket]:
    """The buckets, neighbours that have one schedule being one."""
    made: list[Bucket] = []
    for lo, hi, schedule in table:
        if made and made[-1][2] == schedule:
            made[-1] = made[-1][0], hi, schedule
        else:
            made.append((lo, hi, schedule))
    return made


def warps(elements: int) -> int:
    """Eight to sixteen elements a thread."""
    return min(max(power_of_2(elements) // 512, 1), 16)


def power_of_2(n: int) -> int:
    """The smallest power of two that is n or more."""
    return 1 << max(n - 1, 0).bit_length()


def powers_of_2(lo: int, hi: int) -> tuple[int, ...]:
    """Those in [lo, hi], for domains."""
    return tuple(1 << e for e in range(lo.bit_length() - 1, hi.bit_length()) if 1 << e >= lo)


def factor(dim: Dim, name: str) -> int:
    """The constant that multiplies a symbol; 0 where there is none."""
    if isinstance(dim, int):
        return 0
    return next((c for monomial, c in dim.terms if monomial == ((name, 1),)), 0)
