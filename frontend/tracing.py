"""The state in which torch traces: one thread at a time, no gradients, nothing assumed of sizes."""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx.experimental._config as symbolic_config
from torch.fx.experimental import proxy_tensor

from ..ir.fork_lock import ForkLock
from .replaced import Replaced

_TORCH = os.path.dirname(torch.__file__) + os.sep
TRACING = ForkLock()  # torch traces one module at a time: its modes are the process's


@contextmanager
def tracing() -> Iterator[None]:
    """One thread at a time: no gradients, no fused encoder path, nothing assumed of sizes.

    By default torch takes every dynamic size for 2 or more and silently answers branches on sizes
    by that. With `backed_size_oblivious` sizes may also be 0 and 1, and a branch that depends on
    it is recorded as a guard, which symbols.py proves or turns into a declared range.
    """
    with ExitStack() as stack:
        stack.enter_context(TRACING)
        stack.enter_context(_fused_encoder_off())
        stack.enter_context(_only_this_thread())
        stack.enter_context(_one_line_each())
        stack.enter_context(torch.no_grad())
        stack.enter_context(Replaced())
        stack.enter_context(_quiet())
        # the config module gets its methods when it is loaded
        config: Any = symbolic_config
        stack.enter_context(config.patch(backed_size_oblivious=True))
        stack.enter_context(warnings.catch_warnings())
        # torch's own deprecations, and attributes that forward sets on the copy
        warnings.filterwarnings("ignore", module=r"torch\.|copyreg")
        warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export")
        yield


@contextmanager
def _fused_encoder_off() -> Iterator[None]:
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextmanager
def _only_this_thread() -> Iterator[None]:
    """Modules that other threads call meanwhile stay out of the trace.

    Torch's tracer replaces `nn.Module.__call__` and `__getattr__` of the whole process, and so is
    told of calls and attributes of modules that have nothing to do with what is traced.
    """
    tracer, here = proxy_tensor._ModuleStackTracer, threading.get_ident()
    call_module, get = tracer.call_module, tracer.getattr

    def call_here(self: Any, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != here:
            return forward(*args, **kwargs)
        return call_module(self, m, forward, args, kwargs)

    def get_here(self: Any, attr: str, value: Any, cache: Any) -> Any:
        return value if threading.get_ident() != here else get(self, attr, value, cache)

    methods: Any = tracer
    methods.call_module, methods.getattr = call_here, get_here
    try:
        yield
    finally:
        methods.call_module, methods.getattr = call_module, get


@contextmanager
def _one_line_each() -> Iterator[None]:
    """Nodes with the line of the module that made them, in place of torch's trace of all frames.

    Which takes torch a fifth of the time of a whole trace.
    """
    tracer: Any = torch.fx.proxy.TracerBase  # of modules, and of what a branch or a loop runs
    create = tracer.create_node

    def create_node(self: Any, *args: Any, **kwargs: Any) -> Any:
        node = create(self, *args, **kwargs)
        if not node.stack_trace and node.op not in ("placeholder", "output"):
            node.stack_trace = _line_of_module()
        return node

    if not hasattr(torch.fx.config, "do_not_emit_stack_traces"):  # as in torch 2.11
        yield
        return
    before = torch.fx.config.do_not_emit_stack_traces
    tracer.create_node, torch.fx.config.do_not_emit_stack_traces = create_node, True
    try:
        yield
    finally:
        tracer.create_node, torch.fx.config.do_not_emit_stack_traces = create, before


def _line_of_module() -> str:
    """The innermost line of a `forward` that is being run, outside torch where there is one."""
    frame, found = sys._getframe(2), ""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward":
            is_users = not code.co_filename.startswith((_TORCH, "<"))  # <: what torch generates
            if is_users or not found:
                found = f'File "{code.co_filename}", line {frame.f_lineno}, in forward'
            if is_users:
                break
        frame = frame.f_back
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch logs of failures on its way: they are raised, and explained, as well."""
    loggers = [logging.getLogger(n) for n in [*logging.root.manager.loggerDict] if _of_torch(n)]
    handlers = [(handler, handler.level) for logger in loggers for handler in logger.handlers]
    try:
        for handler, _ in handlers:
            handler.setLevel(logging.CRITICAL)
        yield
    finally:
        for handler, level in handlers:
            handler.setLevel(level)


def _of_torch(name: str) -> bool:
    return name == "torch" or name.startswith("torch.")
