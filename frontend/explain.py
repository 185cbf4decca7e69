"""Failures of torch's tracing, in the terms of the module that is traced."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..ir.errors import DimError, TilewrightError, UnsupportedModel


def _data_dependent(error: Exception) -> UnsupportedModel:
    return UnsupportedModel(
        "the module's control flow depends on the values of a tensor",
        where=_user_frame(error),
        facts=_first_line(error),
        fix="write the choice as torch.cond, or compute both ways and choose with torch.where",
    )


@contextmanager
def explained() -> Iterator[None]:
    """Errors of torch's as `explain` has them."""
    try:
        yield
    except Exception as error:
        ours = explain(error)
        if ours is error:
            raise
        raise ours from error


def explain(error: Exception) -> Exception:
    """Torch's error as ours where it concerns the module's structure, else the error itself."""
    text = str(error)
    lowered = text.lower()
    if isinstance(error, TilewrightError):
        return error
    if isinstance(error, GuardOnDataDependentSymNode):
        return _data_dependent(error)
    if "constraints violated" in lowered or "specialized it to be a constant" in lowered:
        lines = [line.strip() for line in text.splitlines() if line.strip().startswith("- ")]
        return DimError(
            "the module needs a fixed size where a dynamic one was asked for",
            where=_user_frame(error),
            facts="\n".join(lines) or _first_line(error),
            fix="leave that axis out of dynamic_shapes, or declare the relation it names",
        )
    dependent = (
        *("data-dependent", "could not guard", "could not extract specialized integer"),
        "pending unbacked symbols",
    )
    if any(phrase in lowered for phrase in dependent):
        return _data_dependent(error)
    if "unsupported input type" in lowered:
        return UnsupportedModel(
            "an argument is neither a tensor nor a container of tensors",
            facts=_first_line(error),
            fix="pass its tensors, in lists and dicts; or register its class, a dataclass with"
            " torch.export.register_dataclass",
        )
    module = type(error).__module__
    tracers = ("torch._dynamo", "torch._export", "torch.export", "torch._subclasses")
    if module.startswith(tracers) or "does not require grad" in lowered:
        return UnsupportedModel(
            "torch.export cannot trace the module",
            where=_user_frame(error),
            facts=_first_line(error),
            fix="see the first fact; code that leaves torch or inspects values cannot be traced",
        )
    return error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # of what torch's compiler refuses the beginning is the same each time, and the reason follows
    named = ("Explanation: ", "Developer debug context: ")
    reasons = [line.removeprefix(n) for line in lines for n in named if line.startswith(n)]
    if reasons:
        return f"{type(error).__name__}: {' '.join(reasons)}"[:300]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]


def _user_frame(error: BaseException) -> str:
    """The innermost source line outside torch that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    skipped = Path(torch.__file__).parent, Path(__file__).parent
    for frame in reversed(frames):
        path = Path(frame.filename)
        if not frame.filename.startswith("<") and not any(map(path.is_relative_to, skipped)):
            return f"{path.name}:{frame.lineno}: {frame.line}"
    return ""
