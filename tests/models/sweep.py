"""Whether a model, compiled, equals eager at batches that it was not traced for.

The scripts hf_types.py and vision_types.py say which models.
"""

import resource
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from . import apart

TOLERANCE = 1e-4  # of the largest element of a result

# from a type to a model in eval mode, and to keyword arguments for as many examples as asked for
Build = Callable[[str], tuple[Any, Callable[[int], dict[str, Any]]]]


def tensors_of(result: Any) -> dict[str, Any]:
    """All tensors of a result by their paths."""
    import torch
    from torch.utils import _pytree as pytree

    if not isinstance(result, dict | tuple | list | torch.Tensor):
        result = vars(result)
    leaves, _ = pytree.tree_flatten_with_path(dict(result) if isinstance(result, dict) else result)
    return {pytree.keystr(p): x for p, x in leaves if isinstance(x, torch.Tensor)}


def difference(got: Any, right: Any) -> float:
    """The largest difference of two results, relative to the largest element of each tensor.

    Infinite where they are built otherwise.
    """
    ours, theirs = tensors_of(got), tensors_of(right)
    if ours.keys() != theirs.keys():
        return float("inf")
    worst = 0.0
    for name, x in theirs.items():
        y = ours[name]
        if x.shape != y.shape or x.dtype != y.dtype or (x.isnan() != y.isnan()).any():
            return float("inf")
        if x.numel():
            x, y = x.double().nan_to_num(), y.double().nan_to_num()
            worst = max(worst, float((x - y).abs().max() / x.abs().max().clamp(min=1e-6)))
    return worst


def evaluated(imported: Any, arguments: dict[str, Any]) -> Any:
    """What the reference gives for an imported module, in its containers."""
    import torch

    from tilewright.ir.evaluate import evaluate

    inputs = imported.signature.flatten((), arguments)
    arrays = {name: x.numpy() for name, x in inputs.items()}
    outputs, _ = evaluate(imported.graph, arrays, imported.weights, imported.states, precision=None)
    return imported.signature.restore([torch.as_tensor(x) for x in outputs])


def check(build: Build, kind: str, stage: str = "run") -> dict[str, Any]:
    """What happens to one type: the last step begun, or the error that ended it; CPU seconds."""
    row: dict[str, Any] = {"type": kind, "step": "build"}
    start = time.process_time()
    try:
        _steps(row, *build(kind), stage)
        row["step"] = "done"
    except Exception as error:  # noqa: BLE001  a row of the table
        row["error"] = apart.described(error)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # the C++ compiler
    row["seconds"] = round(time.process_time() - start + used.ru_utime + used.ru_stime, 1)
    return row


def _steps(row: dict[str, Any], model: Any, inputs_for: Any, stage: str) -> None:
    import torch

    import tilewright
    from tilewright.frontend.torch_export import import_module

    row["step"] = "eager"
    calls = [inputs_for(batch) for batch in (2, 1, 5)]
    with torch.no_grad():
        right = [model(**call) for call in calls]
    if stage == "eager":
        return
    axes = {name: {0: torch.export.Dim("batch", min=1, max=64)} for name in calls[0]}
    if stage == "import":
        row["step"] = "import"
        imported = import_module(model, (), calls[0], dynamic_shapes=axes, fallback=True)
        row["calls"] = sum(node.op.name == "call" for node in imported.graph.nodes)
        row["step"] = "evaluate"
        row["difference"] = difference(evaluated(imported, calls[1]), right[1])
        return
    row["step"] = "compile"
    compiled = tilewright.compile(model, dynamic_shapes=axes, target="cpu")
    differences = []
    for call, wanted in zip(calls, right):
        differences.append(difference(compiled(**call), wanted))
        row["step"] = "run"
    row["difference"] = max(differences)
    row["calls"], row["programs"] = compiled.fallback_ops, len(compiled.variants)


def main(doc: str, kinds: Iterable[str], build: Build) -> None:
    """Check all types, or those named, each in a process of its own, and print a line for each."""
    import torch

    from tilewright.frontend.torch_export import import_module

    import_module(torch.nn.ReLU(), (torch.ones(2),))  # torch loads its tracer before forking
    apart.main(doc, partial(check, build), kinds, ("eager", "import", "run"))
