"""Which function writes which part of a kernel as C++: one printer a class of part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..loops import Contract, LoopKernel, Part, Pointwise, Reduce, Sample
from ..templates.attention import Attention
from ..templates.scan import Scan
from ..templates.scatter import Scatter
from ..templates.sort import Sort
from .contract import contract_headers, contract_scratch, emit_contract
from .pointwise import emit_pointwise
from .reduce import emit_reduce, reduce_scratch
from .scan import emit_scan, scan_scratch
from .scatter import emit_scatter, scatter_scratch
from .sort import emit_sort, sort_scratch
from .special import attention_scratch, emit_attention, emit_sample, sample_scratch


@dataclass(frozen=True)
class Printer:
    """`emit(kernel, part, name)`: lines that define the function `name`, as abi.py has it.

    `headers`: the files of this folder that those lines need. `scratch(kernel, part, name)`: lines
    that add to `need` what the part uses of the team's scratch. A part with scratch stands alone in
    its kernel: two would use it and the team's counters at the same time.
    """

    emit: Callable[[LoopKernel, Any, str], Sequence[str]]
    headers: Callable[[Any], Sequence[str]]
    scratch: Callable[[LoopKernel, Any, str], Sequence[str]] | None = None


PRINTERS: dict[type[Part], Printer] = {
    Pointwise: Printer(emit_pointwise, lambda part: ("tw_math.h",)),
    Reduce: Printer(emit_reduce, lambda part: ("tw_reduce.h",), reduce_scratch),
    Scan: Printer(emit_scan, lambda part: ("tw_scan.h",), scan_scratch),
    Scatter: Printer(emit_scatter, lambda part: ("tw_scan.h",), scatter_scratch),
    Sort: Printer(emit_sort, lambda part: ("tw_sort.h",), sort_scratch),
    Contract: Printer(emit_contract, contract_headers, contract_scratch),
    Attention: Printer(emit_attention, lambda part: ("tw_attention.h",), attention_scratch),
    Sample: Printer(emit_sample, lambda part: ("tw_sample.h",), sample_scratch),
}
