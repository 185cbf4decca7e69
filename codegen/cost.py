"""What a kernel must move and compute at least: the two floors of its report."""

from ..ir.dim import Dim, product
from .loops import (
    Apply,
    Contract,
    Load,
    LoopKernel,
    PagedAttention,
    Part,
    Pointwise,
    Reduce,
    Sample,
)
from .symbols import walk


def traffic_of(kernel: LoopKernel) -> Dim:
    """Bytes: every parameter once. Of one read through an index, only what the loop can touch.

    The KV pool's share is not a function of dims (it depends on the lengths of the sequences) and
    is left out.
    """
    pools = {p.kv for p in kernel.parts if isinstance(p, PagedAttention)}
    gathered: dict[int, Dim] = {}
    for part in kernel.parts:
        for item in walk(part):
            if isinstance(item, Load) and item.indirect:
                gathered[item.param] = _points(part)
            elif getattr(item, "guard", None) is not None:
                pools.add(item.param)
    total: Dim = 0
    for number, param in enumerate(kernel.params):
        if number in pools or number == kernel.records:  # records: written for faults only
            continue
        elements = gathered.get(number, param.type.numel)
        total = total + elements * param.type.dtype.nbytes
    return total


def operations_of(kernel: LoopKernel) -> Dim:
    """Arithmetic operations: a multiply-add counts 2, any other function 1."""
    total: Dim = 0
    for part in kernel.parts:
        if isinstance(part, Contract):
            total = total + 2 * len(part.ws) * _points(part) * part.k.extent
        applied = sum(isinstance(item, Apply) for item in walk(part))
        if isinstance(part, (Pointwise, Reduce)):
            total = total + applied * _points(part)
    return total


def _points(part: Part) -> Dim:
    """Points of the part's iteration space, the contracted axis aside."""
    if isinstance(part, Pointwise):
        return product(a.extent for a in part.axes)
    if isinstance(part, Reduce):
        return product(a.extent for a in (*part.rows, part.axis))
    if isinstance(part, Contract):
        return product(a.extent for a in (*part.batch, part.m, part.n))
    if isinstance(part, Sample):
        return part.rows * part.vocab
    return part.tokens * part.num_heads * part.head_dim
