"""Random data that is fit for a kernel: its integers are indices within what they index."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..codegen.elements import loads_of, walk
from ..codegen.loops import Axis, Check, Contract, Element, Load, LoopKernel, Store
from ..codegen.templates.attention import Attention
from ..codegen.templates.scatter import Scatter
from ..ir.dim import evaluate
from .bucket_sizes import Sizes


@dataclass(frozen=True)
class Data:
    """Arrays of a kernel's parameters as they lie in memory, and as the loop IR reads them."""

    stored: tuple[np.ndarray, ...]
    plain: tuple[np.ndarray, ...]  # flat


def make_data(kernel: LoopKernel, sizes: Sizes, rng: np.random.Generator) -> Data:
    """Random numbers; integers are fit for where they are used as indices, and differ."""
    limits, divisors = index_limits(kernel, sizes), divisors_of(kernel)
    paged = _paged_arrays(kernel, sizes, rng)
    products = {
        load.param for p in kernel.parts if isinstance(p, Contract) for load in loads_of(p.ws)
    }
    stored, plain = [], []
    for number, param in enumerate(kernel.params):
        shape = tuple(evaluate(d, sizes) for d in param.type.shape)
        dtype = param.type.dtype
        if number in paged:
            array = paged[number].astype(dtype.numpy)
        elif number == kernel.records:
            array = np.zeros(shape, dtype.numpy)
        elif dtype.is_float:
            array = rng.standard_normal(shape, np.float32).astype(dtype.numpy)
        elif dtype.is_packed or dtype.bits < 16:
            high = 2 if dtype.name == "bool" else 1 << min(dtype.bits, 7)
            array = rng.integers(0, high, shape).astype(dtype.numpy)
        else:
            count = int(np.prod(shape))
            array = (np.arange(count) % limits.get(number, 1 << 15)).reshape(shape)
            array += number in divisors
            array = array.astype(dtype.numpy)
        lies = param.encoding.pack(array, dtype)
        stored.append(lies)
        # weights of products are read as rows whatever their order, others as they lie
        plain.append((array if number in products else lies).reshape(-1))
    return Data(tuple(stored), tuple(plain))


def index_limits(kernel: LoopKernel, sizes: Sizes) -> dict[int, int]:
    """Parameters whose elements are indices -> below which number they must be."""
    limits: dict[int, int] = {}

    def restrict(element: Element, limit: int) -> None:
        for load in loads_of((element,)):
            limits[load.param] = max(min(limit, limits.get(load.param, limit)), 1)

    for part in kernel.parts:
        axes = {
            item.name: evaluate(item.extent, sizes) for item in walk(part) if isinstance(item, Axis)
        }
        for item in walk(part):
            if isinstance(item, Check) and item.size is not None:
                restrict(item.arg, evaluate(item.size, sizes))
            elif isinstance(item, Load | Store) and item.indirect:
                elements = evaluate(kernel.params[item.param].type.numel, sizes)
                for name, element in item.indirect:
                    restrict(element, _fits(item, name, axes, sizes, elements))
        if isinstance(part, Scatter):
            restrict(part.index, evaluate(part.axes[len(part.outer)].extent, sizes))
        elif isinstance(part, Contract) and part.group is not None:
            restrict(part.group.index, evaluate(part.group.axis.extent, sizes))
    return limits


def divisors_of(kernel: LoopKernel) -> set[int]:
    """Parameters whose elements something is divided by."""
    checks = [item for part in kernel.parts for item in walk(part) if isinstance(item, Check)]
    return {load.param for c in checks if c.size is None for load in loads_of((c.arg,))}


def _fits(
    item: Load | Store, name: str, axes: Mapping[str, int], sizes: Sizes, elements: int
) -> int:
    """How many values of an index lie in the buffer, whatever the axes are."""
    others = {axis: max(extent - 1, 0) for axis, extent in axes.items()}
    others |= {other: 0 for other, _ in item.indirect}
    low, high = 0, elements
    while low < high:
        middle = (low + high) // 2
        if evaluate(item.offset, {**sizes, **others, name: middle}) < elements:
            low = middle + 1
        else:
            high = middle
    return low


def _paged_arrays(
    kernel: LoopKernel, sizes: Sizes, rng: np.random.Generator
) -> dict[int, np.ndarray]:
    """Of paged attention: pages anywhere, tokens shared out evenly, every sequence at its end."""
    made: dict[int, np.ndarray] = {}
    for part in kernel.parts:
        if not isinstance(part, Attention) or (pages := part.pages) is None:
            continue
        sequences, width = evaluate(pages.sequences, sizes), evaluate(pages.width, sizes)
        tokens = evaluate(part.queries, sizes)
        made[pages.table] = rng.permutation(sequences * width).reshape(sequences, width)
        made[pages.query_starts] = np.arange(sequences + 1) * tokens // max(sequences, 1)
        made[pages.context_lens] = np.full(sequences, width * pages.size)
    return made
