"""Under what a schedule is recorded: all that decides how fast a kernel is, without names.

Two kernels that differ in the names of their dims only have one key.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from ..codegen.build_steps import VERSION
from ..codegen.loops import LoopKernel, Param
from ..ir.dim import Dim, Expr, substitute, symbol
from ..ir.encoding import Encoding
from ..ir.target import Target
from ..ir.types import DType
from ..runtime.cpu import instruction_sets


@dataclass(frozen=True)
class Key:
    """The parts, each as text. Keys that differ in the bucket only are of one family."""

    kernel: str  # what is computed, dims renamed
    dtypes: str  # of its parameters
    layout: str  # shapes and orders of their elements
    target: str
    codegen: str  # version of what writes code from a schedule
    bucket: str = ""  # "17..64", of the size that chooses the schedule

    @cached_property
    def digest(self) -> str:
        """sha256 of all parts."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @cached_property
    def family(self) -> str:
        """The digest without the bucket."""
        return replace(self, bucket="").digest

    @property
    def template(self) -> str:
        """The template of the kernel."""
        return self.kernel.rpartition("\n")[2].partition("(")[0]

    @property
    def bounds(self) -> tuple[int, int | None]:
        """(lo, hi) of the bucket. ValueError when its text is none."""
        lo, dots, hi = self.bucket.partition("..")
        is_one = dots and lo.isdecimal() and (hi.isdecimal() or not hi)
        if not is_one or (hi and int(hi) < int(lo)):
            raise ValueError(f"{self.bucket!r} is no bucket: one is '17..64', or '65..'")
        return int(lo), int(hi) if hi else None

    def at(self, lo: int, hi: int | None) -> "Key":
        """The key of the same kernel in another bucket."""
        return replace(self, bucket=f"{lo}..{'' if hi is None else hi}")


PARTS = tuple(f.name for f in fields(Key))


def key_of(kernel: LoopKernel, target: Target) -> Key:
    """The key of a kernel, without a bucket: see `Key.at`."""
    names = canonical_names(kernel)
    return Key(
        kernel=kernel_text(kernel, names),
        dtypes=", ".join(map(_dtype_text, kernel.params)),
        layout=", ".join(_layout_text(param, names) for param in kernel.params),
        target=target_text(target),
        codegen=str(VERSION),
    )


def differences(a: Key, b: Key) -> tuple[str, ...]:
    """The parts in which two keys differ."""
    return tuple(part for part in PARTS if getattr(a, part) != getattr(b, part))


def canonical_names(kernel: LoopKernel) -> dict[str, str]:
    """The graph's symbols in a kernel -> d0, d1, ..., in an order that no name decides.

    They are ordered by the kernel's text with each alone told apart from the others. Symbols of one
    text stand at the same places of one formula; which of them is first then hardly matters.
    """

    def place(name: str) -> str:
        alone = dict.fromkeys(kernel.symbols, "other") | {name: "self"}
        shapes = _Text({old: symbol(new) for old, new in alone.items()})
        return kernel_text(kernel, alone) + shapes.of(tuple(p.type.shape for p in kernel.params))

    ordered = kernel.symbols
    if len(ordered) > 1:
        ordered = tuple(sorted(ordered, key=place))
    return {name: f"d{number}" for number, name in enumerate(ordered)}


def kernel_text(kernel: LoopKernel, names: Mapping[str, str]) -> str:
    """The parts of a kernel, a line for each distinct object in them; symbols renamed."""
    text = _Text({old: symbol(new) for old, new in names.items()})
    parts = ", ".join(map(text.of, kernel.parts))
    records = "" if kernel.records is None else f", records {kernel.records}"
    return "\n".join([*text.lines, f"{kernel.template}({parts}){records}"])


class _Text:
    """Lines of text, shared objects being written once."""

    def __init__(self, names: Mapping[str, Dim]):
        self.names = names
        self.lines: list[str] = []
        self._by_id: dict[int, str] = {}
        self._by_line: dict[str, str] = {}

    def of(self, item: Any) -> str:
        if isinstance(item, Expr):
            try:
                return str(substitute(item, self.names))
            except ZeroDivisionError:  # by a difference of symbols that have one name here
                return "undefined"
        if isinstance(item, DType):
            return item.name
        if isinstance(item, tuple):
            return f"({', '.join(map(self.of, item))})"
        if not is_dataclass(item):
            return repr(item)
        if id(item) not in self._by_id:
            inner = ", ".join(self.of(getattr(item, f.name)) for f in fields(item))
            line = f"{type(item).__name__}({inner})"
            if line not in self._by_line:
                self._by_line[line] = f"%{len(self.lines)}"
                self.lines.append(f"%{len(self.lines)} = {line}")
            self._by_id[id(item)] = self._by_line[line]
        return self._by_id[id(item)]


def _dtype_text(param: Param) -> str:
    words = [param.type.dtype.name]
    if param.packed is not None:
        words.append(f"of {param.packed.name}")
    words += ["written"] * param.is_written + ["constant"] * param.is_constant
    return " ".join(words)


def _layout_text(param: Param, names: Mapping[str, str]) -> str:
    renamed = {old: symbol(new) for old, new in names.items()}
    shape = ", ".join(str(substitute(size, renamed)) for size in param.type.shape)
    return f"[{shape}] {_encoding_text(param.encoding)}"


def _encoding_text(encoding: Encoding) -> str:
    """Without the names of the tensors that hold scales."""
    scale, zero = (name and "given" for name in (encoding.scale, encoding.zero))
    return str(replace(encoding, scale=scale, zero=zero))


def target_text(target: Target) -> str:
    """A GPU's name; of a CPU what its programs are compiled for, and how many cores run them."""
    if target.is_gpu:
        return target.name
    cores = len(os.sched_getaffinity(0))
    march = target.march or "native"
    sets = f" ({' '.join(instruction_sets())})" if march == "native" else ""
    return f"{target.name} {march}{sets}, {cores} cores"
