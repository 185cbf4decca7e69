"""A kernel at some sizes as numbers, and what one of its launches does."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from ..codegen.loops import LoopKernel, Pointwise
from ..codegen.templates import template_with
from ..codegen.templates.contract_schedules import has_prologue
from ..ir.dim import Dim, evaluate
from ..ir.target import Target
from ..ir.types import DType
from ..runtime.cpu import usable_cores
from .bucket_sizes import Sizes

MOST_REGISTERS = 255  # of a thread; what does not fit is kept in memory
WIDEST = 16.0  # bytes that one instruction of a thread reads
OWN = 32  # registers of a thread for addresses, masks and the like


@dataclass(frozen=True)
class LaunchWork:
    """One launch. `moved` and `read` count all programs together.

    `operands`: dtypes of the products that the operations are; none where they are others.
    """

    programs: int
    threads: int  # of a program
    moved: float  # bytes that must come from memory or go there
    read: float  # bytes that programs ask for: the rest comes from the cache
    operations: float
    operands: tuple[DType, ...] = ()
    side: int = 0  # the shorter side of a tile of products; 0 where there are none
    is_copied: bool = False  # whether operands come as whole tiles
    shared: int = 0  # bytes of a program
    registers: int = OWN  # of a thread
    steps: int = 1  # turns of a program, each of which waits for memory
    ahead: float = 0  # bytes that a program has asked for at a time
    stages: int = 2  # of which one is computed on while the others arrive
    sums: int = 0  # that all threads of a program join at its end
    width: float = WIDEST  # bytes that a thread reads side by side


class KernelFacts:
    """A kernel at some sizes, as numbers."""

    def __init__(self, kernel: LoopKernel, sizes: Sizes, target: Target):
        self.kernel, self.sizes = kernel, sizes
        # of a CPU the target does not say how many cores there are
        self.target = target if target.is_gpu else replace(target, num_cores=usable_cores())
        self._known: dict[Dim, int] = {}
        self.part: Any = kernel.parts[0]
        template = template_with(self.part)
        self.traffic = self.of(template.traffic(kernel))
        self.operations = self.of(sum(map(template.operations, kernel.parts)))
        self.operands = template.products(self.part)
        self.floor = target.seconds(self.traffic, self.operations, *self.operands)

    def of(self, dim: Dim) -> int:
        """A dim at these sizes."""
        if dim not in self._known:
            self._known[dim] = evaluate(dim, self.sizes)
        return self._known[dim]

    @cached_property
    def product(self) -> "ProductFacts":
        """Of a contraction."""
        return ProductFacts(self)


class ProductFacts:
    """m, n, k and bytes of a contraction."""

    def __init__(self, facts: KernelFacts):
        part = facts.part
        self.m, self.n, self.k = (facts.of(a.extent) for a in (part.m, part.n, part.k))
        self.batch = prod(facts.of(a.extent) for a in part.batch)
        self.groups = 1 if part.group is None else facts.of(part.group.axis.extent)
        self.ws = len(part.ws)
        self.x_bytes, self.w_bytes = part.x_dtype.nbytes, part.w_dtype.nbytes
        self.is_prepared = has_prologue(part)
        stored = [facts.kernel.params[store.param].type.dtype for store in part.stores]
        self.out_bytes = max(dtype.nbytes for dtype in stored)
        op = facts.target.matrix_op(part.x_dtype, part.w_dtype)
        self.fed_bytes = max(self.x_bytes, self.w_bytes, *([op.operand.nbytes] if op else []))


# None: the schedule is not for the kernel or the target
Launches = list[LaunchWork] | None


def is_legal(work: LaunchWork, target: Target) -> bool:
    """Whether a program of the launch fits a core."""
    fits = work.threads <= target.max_threads and work.shared <= target.shared_bytes
    return not target.is_gpu or (fits and work.registers <= MOST_REGISTERS)


def ceiling(a: float, b: float) -> int:
    """Of a quotient."""
    return int(-(-a // b))


def pointwise_parts(facts: KernelFacts) -> list[Pointwise]:
    """Of a kernel the parts that compute element by element."""
    return [part for part in facts.kernel.parts if isinstance(part, Pointwise)]
