"""A kernel of the loop IR as one C++ source: an entry point and a function a part."""

from ...ir.errors import BuildError
from ...ir.target import Target
from ..loops import Contract, LoopKernel, PagedAttention, Pointwise, Reduce, Sample
from .contract import contract_headers, contract_scratch, emit_contract
from .pointwise import emit_pointwise
from .reduce import emit_reduce, reduce_scratch
from .special import attention_scratch, emit_attention, emit_sample, sample_scratch


def emit_kernel(kernel: LoopKernel, name: str, target: Target) -> str:
    """The source of `kernel` with entry `name`; see abi.py for how it is called."""
    if not name.isidentifier():
        raise BuildError(f"{name!r} is not a name for a kernel")
    cooperating = [p for p in kernel.parts if not isinstance(p, Pointwise)]
    if len(cooperating) > 1:
        # they would use the team's scratch and counters at the same time
        raise BuildError(
            f"kernel {name} has {len(cooperating)} parts that are not pointwise",
            fix="lower them to kernels of their own",
        )
    functions: list[str] = []
    calls: list[str] = []
    needs: list[str] = []
    headers: list[str] = []
    for i, part in enumerate(kernel.parts):
        part_name = f"{name}_{i}"
        lines, scratch = _part(kernel, part, part_name)
        functions += [*lines, ""]
        calls.append(f"    {part_name}(p, d, team);")
        needs += scratch
        headers += [h for h in _headers(part) if h not in headers]
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


def _part(kernel: LoopKernel, part, name: str) -> tuple[list[str], list[str]]:
    match part:
        case Pointwise():
            return emit_pointwise(kernel, part, name), []
        case Reduce():
            return emit_reduce(kernel, part, name), reduce_scratch(kernel, part, name)
        case Contract():
            return emit_contract(kernel, part, name), contract_scratch(kernel, part, name)
        case PagedAttention():
            return emit_attention(kernel, part, name), attention_scratch(kernel, part, name)
        case Sample():
            return emit_sample(kernel, part, name), sample_scratch(kernel, part, name)
    raise BuildError(f"no C++ template for {type(part).__name__}")


def _headers(part) -> list[str]:
    match part:
        case Pointwise():
            return ["tw_math.h"]
        case Reduce():
            return ["tw_reduce.h"]
        case Contract():
            return contract_headers(part)
        case PagedAttention():
            return ["tw_attention.h"]
    return ["tw_sample.h"]
