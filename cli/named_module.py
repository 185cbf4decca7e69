"""The module that a command line names: `package.module:name`, `file.py:name`, `.pt2`, `.onnx`."""

import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.errors import OptionError, TilewrightError

if TYPE_CHECKING:
    from ..api.compile_onnx import CompiledOnnx
    from ..api.compiled_module import CompiledModule

_NAMED = re.compile(r"(?P<place>[^:]+):(?P<name>[A-Za-z_][\w.]*)")
_TYPE = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]")
_RANGE = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<lo>\d+)(?:\.\.(?P<hi>\d*))?")


def is_named(text: str) -> bool:
    """Whether this names a module, and not a file, a folder or `demo`."""
    return text.endswith((".pt2", ".onnx")) or (
        _NAMED.fullmatch(text) is not None and not Path(text).exists()
    )


@dataclass(frozen=True)
class Named:
    """A module or an exported program, with arguments to call it with."""

    module: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    has_values: bool = True  # the arguments are more than examples of their types


def compile_named(
    text: str,
    inputs: Sequence[str],
    dims: Sequence[str],
    *,
    target: str,
    strict: bool,
    options: Mapping[str, Any],
    trust: bool,
    records: str | None = None,
) -> "CompiledModule | CompiledOnnx":
    """The module compiled for inputs as they are described, or as it says itself."""
    from ..api import compile_model

    compile = partial(
        compile_model.compile, target=target, strict=strict, options=options, records=records
    )
    if text.endswith(".onnx"):
        return compile(text, dynamic_shapes=shapes_of_inputs(inputs, dims, text))
    named = load_named(text, inputs, dims, trust=trust)
    if text.endswith(".pt2"):
        return compile(named.module)
    with _code_of("the module does not compute for these inputs", text, "pass what it takes"):
        compiled = compile(named.module, dynamic_shapes=named.dynamic_shapes)
        compiled.specialize(named.args, named.kwargs)
    return compiled


def options_of(dtype: str) -> dict[str, Any]:
    """What `compile` is given for --dtype. OptionError for one that it does not know."""
    from ..api.request import parse_dtype

    stored = parse_dtype(dtype, "--dtype")
    return {} if stored is None or stored.name == "f32" else {"weights_dtype": stored.name}


def load_named(text: str, inputs: Sequence[str], dims: Sequence[str], *, trust: bool) -> Named:
    """What is named, with arguments as they are described, or as it says itself."""
    from ..api.compile_module import check_module

    if text.endswith(".pt2"):
        exported = _read_exported(Path(text), inputs, dims, trust)
        args, kwargs = exported.example_inputs or ((), {})
        return Named(exported, args, kwargs, has_values=False)
    module, examples, shapes = _make(text)
    check_module(module)
    if inputs:
        arguments, shapes = read_inputs(inputs, dims)
        return Named(module, (), arguments, shapes, has_values=False)
    if examples is None and _needs_inputs(module):
        raise OptionError(
            "nothing says what the module is called with",
            where=text,
            facts=f"forward{inspect.signature(module.forward)}",
            fix="--input NAME=TYPE for each argument, such as --input 'x=f32[batch, 128]';"
            f" or let {text.rpartition(':')[2]} return (module, example_inputs)",
        )
    return Named(module, tuple(examples or ()), {}, shapes)


def read_arrays(path: Path) -> dict[str, Any]:
    """Arguments by name from an .npz file. OptionError when it is none."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise OptionError(
            f"{path} does not hold arrays by name",
            facts=f"{type(error).__name__}: {error}",
            fix="write it with numpy.savez(path, x=...), its arrays named as the arguments",
        ) from error


def as_tensors(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """NumPy arrays as what modules take."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@contextmanager
def _code_of(what: str, where: str, fix: str) -> Iterator[None]:
    """OptionError for what code that is not ours raises, which is no bug of ours."""
    try:
        yield
    except TilewrightError:
        raise
    except Exception as error:
        facts = f"{type(error).__name__}: {error}"
        fix = f"{fix}; --debug shows where it failed"
        raise OptionError(what, where=where, facts=facts, fix=fix) from error


def read_inputs(
    inputs: Sequence[str], dims: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Example arguments and torch.export's dynamic shapes, from `x=f32[batch, 3]`, `batch=1..8`.

    A value that is no type is a constant in JSON: `scale=2.5`. OptionError for what is neither.
    """
    import torch

    ranges = dict(_read_range(text) for text in dims)
    symbols: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    arguments: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    for text in inputs:
        name, equals, described = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise _bad_input(text, f"{name!r} is no name of an argument")
        kind = _TYPE.fullmatch(described)
        if kind is None:
            arguments[name], shapes[name] = _constant(text, described), None
            continue
        shape = [part.strip() for part in kind["shape"].split(",") if part.strip()]
        for part in shape:
            if part.isdigit() or part in sizes:
                continue
            if not part.isidentifier():
                raise _bad_input(text, f"{part!r} is neither a number nor a name")
            lo, hi = ranges.pop(part, (1, None))
            # sizes that differ, so that no two dims are taken for one
            sizes[part] = min(max(lo, 5 + len(sizes)), sys.maxsize if hi is None else hi)
            if lo != hi:
                symbols[part] = torch.export.Dim(part, min=lo, max=hi)
        dtype = _dtype(text, kind["dtype"])
        extents = [sizes[part] if part in sizes else int(part) for part in shape]
        arguments[name] = torch.zeros(extents, dtype=dtype)
        axes = {axis: symbols[part] for axis, part in enumerate(shape) if part in symbols}
        shapes[name] = axes or None
    if ranges:
        raise OptionError(
            f"--dim gives a range to {', '.join(ranges)}, which no input has",
            facts=f"the inputs' dims are {', '.join(sizes) or '(none)'}",
        )
    return arguments, shapes if symbols else None


# ---- where modules come from ---------------------------------------------------------------


def _make(text: str) -> tuple[Any, Any, Any]:
    """(module, example inputs or None, dynamic shapes or None) of what is named."""
    named = _NAMED.fullmatch(text)
    assert named is not None, "is_named was asked"
    fix = "name a torch.nn.Module, or what makes one when called without arguments"
    with _code_of("the module could not be made", text, fix):
        found: Any = _import(named["place"])
        for part in named["name"].split("."):
            found = getattr(found, part)
        is_module = hasattr(found, "forward") and not isinstance(found, type)
        if callable(found) and not is_module:
            found = found()
    parts = tuple(found) if isinstance(found, tuple) else (found,)
    if not 1 <= len(parts) <= 3:
        raise OptionError(
            f"{named['name']} gave {len(parts)} things",
            where=text,
            fix="give a module, (module, example_inputs), or those and dynamic_shapes",
        )
    module, examples, shapes = (*parts, None, None)[:3]
    if hasattr(module, "eval") and hasattr(module, "training"):
        module.eval()  # what is compiled here is for inference
    return module, examples, shapes


def _import(place: str) -> Any:
    """A Python module by its dotted name, the working directory first, or by its file."""
    if not place.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None or not Path(place).is_file():
        raise OptionError(f"{place} does not exist", fix="give a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and pickles look for it
    spec.loader.exec_module(module)
    return module


def shapes_of_inputs(
    inputs: Sequence[str], dims: Sequence[str], where: str
) -> dict[str, tuple[int | str, ...]]:
    """Shapes of an ONNX model's inputs in place of the declared ones, from `x=f32[batch, 3]`."""
    if dims:
        raise OptionError("--dim is for modules: an ONNX model declares its dims", where=where)
    shapes = {}
    for text in inputs:
        name, _, described = (part.strip() for part in text.partition("="))
        kind = _TYPE.fullmatch(described)
        if kind is None:
            raise _bad_input(text, f"{described!r} is no type")
        sizes = [part.strip() for part in kind["shape"].split(",") if part.strip()]
        shapes[name] = tuple(int(size) if size.isdigit() else size for size in sizes)
    return shapes


def _read_exported(path: Path, inputs: Sequence[str], dims: Sequence[str], trust: bool) -> Any:
    import torch

    if inputs or dims:
        raise OptionError(
            "an exported program has its inputs and sizes already",
            where=str(path),
            fix="leave out --input and --dim",
        )
    if not path.is_file():
        raise OptionError(f"{path} does not exist", fix="give a file that torch.export.save wrote")
    if not trust:
        raise OptionError(
            "reading an exported program may run code from its file",
            where=str(path),
            facts="torch.export.load unpickles constants, and evaluates the text of sizes",
            fix="if you know who wrote it: --trust",
        )
    fix = "export it again with this version of torch"
    with _code_of("the exported program cannot be read", str(path), fix):
        return torch.export.load(str(path))


def _needs_inputs(module: Any) -> bool:
    parameters = inspect.signature(module.forward).parameters.values()
    return any(p.default is p.empty and p.kind < p.VAR_POSITIONAL for p in parameters)


# ---- what inputs are -----------------------------------------------------------------------


def _read_range(text: str) -> tuple[str, tuple[int, int | None]]:
    found = _RANGE.fullmatch(text.replace(" ", ""))
    lo = int(found["lo"]) if found else 0
    hi = int(found["hi"]) if found and found["hi"] else None
    if found and found["hi"] is None:
        hi = lo
    if found is None or (hi is not None and hi < lo):
        raise OptionError(f"--dim {text!r} is no range", fix="write --dim batch=1..8, or batch=1..")
    return found["name"], (lo, hi)


def _dtype(text: str, name: str) -> Any:
    from ..frontend.dtypes import TO_TORCH
    from ..ir.types import DTYPES

    if name not in DTYPES:
        raise _bad_input(text, f"{name!r} is no dtype; there are {', '.join(DTYPES)}")
    return TO_TORCH[DTYPES[name]]


def _constant(text: str, described: str) -> Any:
    try:
        return json.loads(described)
    except ValueError:
        raise _bad_input(text, f"{described!r} is neither a type nor a constant") from None


def _bad_input(text: str, facts: str) -> OptionError:
    return OptionError(
        f"--input {text!r} does not describe an argument",
        facts=facts,
        fix="write --input 'x=f32[batch, 128]', or --input scale=2.5 for a constant",
    )
