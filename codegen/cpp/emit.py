"""A kernel of the loop IR as one C++ source: an entry point and a function a part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.dim import Dim
from ...ir.errors import BuildError
from ...ir.target import Target
from ..backend import printer_of
from ..loops import Contract, LoopKernel, Part, Pointwise, Reduce, Sample
from ..templates.attention import Attention
from ..templates.scan import Scan
from ..templates.scatter import Scatter
from ..templates.sort import Sort
from ..templates.template import Bucket, Schedule
from . import dims
from .contract import contract_buckets, contract_scratch, emit_contract
from .pointwise import emit_pointwise
from .reduce import emit_reduce, reduce_buckets, reduce_scratch
from .scan import emit_scan
from .scatter import emit_scatter, scatter_scratch
from .schedules import fixed_buckets, query_buckets, run_buckets
from .sort import emit_sort, sort_scratch
from .special import attention_scratch, emit_attention, emit_sample, sample_scratch


@dataclass(frozen=True)
class Printer:
    """`emit(kernel, part, name)`: lines that define the function `name`, as abi.py has it.

    `header`: the file of this folder that those lines need. `scratch(kernel, part, name)`: lines
    that raise `need[0]` (a thread's) and `need[1]` (the team's) to the bytes of scratch that the
    part uses, with `d`, `nthreads` and the kernel's symbols at hand. A part with scratch stands
    alone in its kernel: two would use it and the team's counters at the same time.

    `buckets`: which schedule for which size, as `Template.defaults` has it. Where there is a choice
    `emit` and `scratch` are given the schedule as well.
    """

    emit: Callable[..., Sequence[str]]
    header: str
    scratch: Callable[..., Sequence[str]] | None = None
    buckets: Callable[[LoopKernel], tuple[Dim, list[Bucket]]] = fixed_buckets


PRINTERS: dict[type[Part], Printer] = {
    Pointwise: Printer(emit_pointwise, "tw_math.h", buckets=run_buckets),
    Reduce: Printer(emit_reduce, "tw_reduce.h", reduce_scratch, reduce_buckets),
    Scan: Printer(emit_scan, "tw_scan.h", lambda *_: ["need[1] = tw_greater(need[1], 64);"]),
    Scatter: Printer(emit_scatter, "tw_scan.h", scatter_scratch),
    Sort: Printer(emit_sort, "tw_sort.h", sort_scratch),
    Contract: Printer(emit_contract, "tw_contract.h", contract_scratch, contract_buckets),
    Attention: Printer(emit_attention, "tw_attention.h", attention_scratch, query_buckets),
    Sample: Printer(emit_sample, "tw_sample.h", sample_scratch),
}


def choices(kernel: LoopKernel) -> tuple[Dim, list[Bucket]]:
    """The default schedules of a kernel: see `Template.defaults`."""
    return printer_of(PRINTERS, kernel.parts[0], "C++").buckets(kernel)


def emit_kernel(
    kernel: LoopKernel, name: str, target: Target, schedule: Schedule | None = None
) -> str:
    """The source of `kernel` with entry `name`; see abi.py for how it is called.

    Without a schedule it has the first of its default ones.
    """
    if schedule is None:
        schedule = choices(kernel)[1][0][2]
    if not name.isidentifier():
        raise BuildError(f"{name!r} is not a name for a kernel")
    printers = [printer_of(PRINTERS, part, "C++") for part in kernel.parts]
    cooperating = sum(printer.scratch is not None for printer in printers)
    if cooperating > 1:
        raise BuildError(
            f"kernel {name} has {cooperating} parts that use the team's scratch",
            fix="lower them to kernels of their own",
        )
    functions: list[str] = []
    calls: list[str] = []
    needs: list[str] = []
    for i, (part, printer) in enumerate(zip(kernel.parts, printers)):
        part_name = f"{name}_{i}"
        chosen = () if printer.buckets is fixed_buckets else (schedule,)
        functions += [*printer.emit(kernel, part, part_name, *chosen), ""]
        calls.append(f"    {part_name}(p, d, team);")
        if printer.scratch is not None:
            needs += [
                *dims.given(kernel.symbols),
                *printer.scratch(kernel, part, part_name, *chosen),
            ]
    source = [
        f"// {kernel.template} kernel {name}",
        *dict.fromkeys(f'#include "{printer.header}"' for printer in printers),
        "",
        *functions,
        f'extern "C" void {name}(TW_ARGS) {{',
        *calls,
        "}",
        "",
        f'extern "C" void {name}_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {{',
        *(f"    {line}" for line in needs),
        "}",
    ]
    return "\n".join(source) + "\n"
