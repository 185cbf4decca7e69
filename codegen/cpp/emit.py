"""A kernel of the loop IR as one C++ source: an entry point and a function a part."""

from ...ir.errors import BuildError
from ...ir.target import Target
from ..backend import printer_of
from ..loops import LoopKernel
from .printers import PRINTERS


def emit_kernel(kernel: LoopKernel, name: str, target: Target) -> str:
    """The source of `kernel` with entry `name`; see abi.py for how it is called."""
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
    headers: list[str] = []
    for i, (part, printer) in enumerate(zip(kernel.parts, printers)):
        part_name = f"{name}_{i}"
        functions += [*printer.emit(kernel, part, part_name), ""]
        calls.append(f"    {part_name}(p, d, team);")
        if printer.scratch is not None:
            needs += printer.scratch(kernel, part, part_name)
        headers += [h for h in printer.headers(part) if h not in headers]
    source = [
        f"// {kernel.template} kernel {name}",
        *(f'#include "{h}"' for h in headers),
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
