"""Emitted source -> binary, by `triton.compile`, for any target and without its device."""

import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...ir.errors import BuildError
from ...ir.target import Target
from .launch import Emitted


@dataclass(frozen=True)
class CompiledKernel:
    """A binary and what its launch needs."""

    binary: bytes
    entry: str  # the function's name in the binary
    num_warps: int
    shared_bytes: int
    scratch_bytes: int  # global scratch a program
    hidden: int  # pointers of Triton's own that follow the arguments


def require_triton() -> Any:
    """The triton module; BuildError when it is not installed."""
    try:
        import triton
    except ImportError as error:
        raise BuildError(
            "Triton is not installed, and GPU kernels are built with it",
            facts=str(error),
            fix='install it: pip install "tilewright[gpu]"',
        ) from error
    return triton


def compile_kernel(emitted: Emitted, target: Target) -> CompiledKernel:
    """Compile one launch. BuildError carries Triton's words and the path of the source."""
    triton = require_triton()
    threads = emitted.num_warps * target.warp_size
    if threads > target.max_threads:
        raise BuildError(
            f"{emitted.name} needs more threads than a program of {target.name} has",
            facts=f"it needs {threads}, there are {target.max_threads}",
            fix="choose a schedule with fewer warps",
        )
    # Triton reads a kernel's source back from its file, so there must be one
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        path = Path(folder) / f"{emitted.name}.py"
        path.write_text(emitted.source)
        try:
            compiled = _compile(triton, emitted, path, target)
        except Exception as error:  # Triton raises many kinds, and all mean the same
            raise failed(emitted, target, str(error)) from error
    metadata = compiled.metadata
    if metadata.shared > target.shared_bytes:
        raise BuildError(
            f"{emitted.name} needs more shared memory than {target.name} has",
            facts=f"it needs {metadata.shared} bytes, there are {target.shared_bytes}",
            fix="choose a schedule with smaller tiles or fewer stages",
        )
    # Triton appends pointers of its own (scratch memory) that the launcher must pass
    hidden = 2
    if "ptx" in compiled.asm:
        hidden = _count_parameters(compiled.asm["ptx"], metadata.name) - len(emitted.signature)
    return CompiledKernel(
        compiled.asm[target.binary],
        metadata.name,
        metadata.num_warps,
        metadata.shared,
        getattr(metadata, "global_scratch_size", 0) or 0,
        hidden,
    )


def failed(emitted: Emitted, target: Target, words: str) -> BuildError:
    """The error for a source that Triton does not take; the source is kept for reading."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright-failed-"))
    path = folder / f"{emitted.name}.py"
    path.write_text(emitted.source)
    return BuildError(
        f"Triton could not compile {emitted.name} for {target.name}",
        where=str(path),
        facts=words if len(words) <= 2000 else words[:2000] + " ...",
        fix="please report this with that file: generated source should always compile",
    )


def _compile(triton: Any, emitted: Emitted, path: Path, target: Target) -> Any:
    from triton.backends.compiler import GPUTarget

    spec = importlib.util.spec_from_file_location(f"tilewright_{emitted.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, emitted.name)
    names = [name for name, _ in emitted.signature]
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in emitted.aligned}
    source = triton.compiler.ASTSource(
        fn=function, signature=dict(emitted.signature), constexprs={}, attrs=aligned
    )
    options = {
        "num_warps": emitted.num_warps,
        "num_stages": emitted.num_stages,
        "enable_fp_fusion": emitted.fp_fusion,
    }
    if emitted.pdl:
        options["launch_pdl"] = True
    gpu = GPUTarget(target.kind, target.architecture, target.warp_size)
    return triton.compile(source, target=gpu, options=options)


def _count_parameters(ptx: str, entry: str) -> int:
    head = ptx[ptx.index(f".entry {entry}(") :]
    return head[: head.index("{")].count(".param ")
