"""`compile(module)`: a callable that runs generated kernels in place of the module."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..ir import switches
from ..ir.errors import OptionError, UnsupportedModel
from .compiled_module import CompiledModule
from .compiled_variant import PIPELINE_OPTIONS, read_options
from .records import Records

# `fallback` asked for calls of PyTorch before they were the rule
OPTIONS = {**PIPELINE_OPTIONS, "fallback": ("eager",)}


def compile(
    module: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: str = "auto",
    strict: bool = False,
    options: Mapping[str, Any] | None = None,
    records: Records = None,
) -> "CompiledModule":
    """A callable with the module's signature that runs generated kernels.

    `module` is a torch.nn.Module, or a torch.export.ExportedProgram, which is compiled as it was
    exported. With `example_inputs` the module is exported and compiled now, else at the first call.
    `dynamic_shapes` is torch.export's (`torch.export.Dim("batch", min=1, max=8)`); without it a
    size that changes between calls makes its axis dynamic, and other containers or constants make a
    program of their own, at the cost of one more compilation. The last 8 programs are kept, and a
    warning says once when that is not enough. Empty axes have programs of their own as well; under
    `dynamic_shapes` they are taken where a dim's range begins at 0.
    options: weights_dtype "bf16" stores matrices narrow. records: the file of tuning records that
    schedules are from, "none" for the default ones; else the user's own (docs/tuning.md). A target
    that this machine does not have can be compiled for, not called.

    Operations that have no kernel are left to PyTorch, which is called on the host in between:
    `fallback_ops` of what is returned counts them, and its `report` says which they are and what
    share of the bytes they move. With `strict` they are an error. Those that draw random numbers,
    or whose results' number depends on sizes, are refused either way.

    The module is read once, when the first program is made, and is never changed. What is done to
    it later (weights loaded or trained, attributes, hooks, submodules, `train()`, `to()`) does not
    reach the compiled module, which keeps the values it read; where it needs another program for
    new sizes and weights were written meanwhile, it raises UnsupportedModel instead of mixing old
    values and new. Compile again to follow. Buffers that `forward` writes begin with the values
    read and are then the compiled module's own. It is compiled in the mode it is in: what train
    mode does at random or to statistics is refused, so call `eval()` first.

    Results are new tensors without gradients, whatever the parameters say: an input that requires
    grad is refused while gradients are on, so that none is lost. Inputs are plain dense tensors;
    autocast must be off. Threads may share a compiled module, and on the CPU forked processes too
    (CUDA does not survive a fork: start processes by "spawn"). It cannot be copied or pickled.
    `close()`, or leaving `with`, gives its memory back.
    Raises UnsupportedOp (one table of all), UnsupportedModel, DimError, BuildError, OptionError; an
    error of the module's own code passes through.
    """
    switches.check()
    given = {**read_options(options, OPTIONS), "strict": strict, "records": records}
    if isinstance(module, torch.export.ExportedProgram):
        if example_inputs is not None or dynamic_shapes is not None:
            raise OptionError(
                "an exported program has its inputs and sizes already",
                facts="example_inputs and dynamic_shapes are for modules",
                fix="leave them out, or compile the module that was exported",
            )
        return CompiledModule.of_exported(module, target, given)
    check_module(module)
    compiled = CompiledModule(module, dynamic_shapes, target, given)
    if example_inputs is not None:
        if not isinstance(example_inputs, (tuple, list)):
            raise OptionError(
                f"example_inputs is a {type(example_inputs).__name__}",
                facts="it is a tuple of the module's positional arguments",
                fix="write compile(module, (x,))",
            )
        compiled.specialize(tuple(example_inputs), {})
    return compiled


def check_module(module: Any) -> None:
    """UnsupportedModel when this is nothing that torch.export takes."""
    if not isinstance(module, torch.nn.Module):
        name = module.__name__ if isinstance(module, type) else type(module).__name__
        kind = "the class" if isinstance(module, type) else "a"
        raise UnsupportedModel(
            "what is to be compiled is no torch.nn.Module",
            facts=f"got {kind} {name}",
            fix="make an instance of it"
            if isinstance(module, type)
            else "put the computation into the forward method of a torch.nn.Module",
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedModel(
            "a scripted module cannot be traced",
            facts=f"{type(module).__name__} holds TorchScript in place of Python code",
            fix="compile the module that it was scripted from",
        )
    own_call = type(module).__call__ is not torch.nn.Module.__call__
    # graph modules of torch's have one too
    if own_call and not type(module).__call__.__module__.startswith("torch."):
        raise UnsupportedModel(
            "the module replaces __call__, which is what would have to be compiled",
            where=f"{type(module).__name__}.__call__",
            fix="move the computation into forward",
        )
    if type(module).forward is torch.nn.Module.forward and "forward" not in vars(module):
        raise UnsupportedModel(
            "the module has no forward method",
            facts=f"it is a {type(module).__name__}",
            fix="write one: it is what is compiled",
        )
