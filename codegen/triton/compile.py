"""Emitted source -> binary, by `triton.compile`, for any target and without its device."""

import importlib.util
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...ir.errors import BuildError
from ...ir.target import Target
from .body import Emitted

# Contracting a * b + c into one rounding: faster, and never less accurate.
FP_FUSION = True


@dataclass(frozen=True)
class Compiled:
    """A binary and what its launch needs."""

    binary: bytes
    entry: str  # the function's name in the binary
    num_warps: int
    shared_bytes: int
    scratch_bytes: int  # global scratch a program
    options: Mapping[str, Any]  # pdl; dims: types of the dims; hidden: how many pointers follow them


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


def compile_kernel(emitted: Emitted, target: Target) -> Compiled:
    """Compile one launch. BuildError carries Triton's words and the path of the source."""
    triton = require_triton()
    # Triton reads a kernel's source back from its file, so there must be one
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        path = Path(folder) / f"{emitted.name}.py"
        path.write_text(emitted.source)
        try:
            compiled = _compile(triton, emitted, path, target)
        except Exception as error:  # noqa: BLE001 (Triton raises many kinds, all mean the same)
            kept = _keep(emitted)
            raise BuildError(
                f"Triton could not compile {emitted.name} for {target.name}",
                where=str(kept),
                facts=_shortened(str(error)),
                fix="please report this with that file: generated source should always compile",
            ) from error
    metadata = compiled.metadata
    binary = compiled.asm["cubin" if target.kind == "cuda" else "hsaco"]
    if metadata.shared > target.shared_bytes:
        raise BuildError(
            f"{emitted.name} needs more shared memory than {target.name} has",
            facts=f"it needs {metadata.shared} bytes, there are {target.shared_bytes}",
            fix="choose a schedule with smaller tiles or fewer stages",
        )
    dims = [kind for _, kind in emitted.signature[len(emitted.buffers) :]]
    # Triton appends pointers of its own (scratch memory) that the launcher must pass
    hidden = 2
    if "ptx" in compiled.asm:
        hidden = _count_parameters(compiled.asm["ptx"], metadata.name) - len(emitted.signature)
    return Compiled(
        binary,
        metadata.name,
        metadata.num_warps,
        metadata.shared,
        getattr(metadata, "global_scratch_size", 0) or 0,
        {"pdl": emitted.pdl, "hidden": hidden, "dims": dims},
    )


def _compile(triton: Any, emitted: Emitted, path: Path, target: Target) -> Any:
    from triton.backends.compiler import GPUTarget

    spec = importlib.util.spec_from_file_location(f"tilewright_{emitted.name}", path)
    assert spec is not None and spec.loader is not None
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
        "enable_fp_fusion": FP_FUSION,
    }
    if target.kind == "cuda":
        gpu = GPUTarget("cuda", int(target.name.removeprefix("sm_")), 32)
        if emitted.pdl:
            options["launch_pdl"] = True
    else:
        gpu = GPUTarget("hip", target.name, 64)
    return triton.compile(source, target=gpu, options=options)


def _count_parameters(ptx: str, entry: str) -> int:
    head = ptx[ptx.index(f".entry {entry}(") :]
    return head[: head.index("{")].count(".param ")


def _keep(emitted: Emitted) -> Path:
    """The source at a place that outlives the error."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright-failed-"))
    path = folder / f"{emitted.name}.py"
    path.write_text(emitted.source)
    return path


def _shortened(text: str, limit: int = 2000) -> str:
    return text if len(text) <= limit else text[:limit] + " ..."
