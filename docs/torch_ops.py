"""Measures how much of PyTorch's own database of operations is imported, and writes the table.

    python docs/torch_ops.py run results.jsonl [--shard 0/2] [--only abs,add] [--compiled]
    python docs/torch_ops.py write results.jsonl     # docs/torch_ops.md

`run` goes through the entries of `torch.testing._internal.common_methods_invocations.op_db`: the
first samples of each dtype are exported, imported, run by the reference (or compiled for this CPU)
and compared with eager, in 16 bits also with float64. Entries that results.jsonl has already are
left out.
"""

import argparse
import json
import signal
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import tilewright
from tilewright.api.arguments import check_tensors
from tilewright.frontend.dtypes import from_numpy, to_numpy
from tilewright.frontend.torch_export import Imported, import_module
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph

PAGE = Path(__file__).resolve().parent / "torch_ops.md"
DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")
SECONDS = 120  # for one entry and dtype
BOUNDS = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
BOUNDS |= {"complex64": 2e-5, "complex128": 1e-9, "complex32": 4e-3}
# which of equal elements is named, torch leaves open
PLACES_OPEN = "topk kthvalue median nanmedian masked.median mode"
# the same of these unless they are stable, so they are measured as that
STABLE = {
    "sort": lambda x, dim=-1, descending=False, **_: torch.sort(
        x, dim=dim, descending=descending, stable=True
    ),
    "argsort": lambda x, dim=-1, descending=False, **_: torch.argsort(
        x, dim=dim, descending=descending, stable=True
    ),
}
# what is in memory that nobody has written is any number
UNWRITTEN = "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_"


class _Tensor:
    """Stands for a tensor in a sample: argument `index` of the module."""

    def __init__(self, index: int):
        self.index = index


class Samples(torch.nn.Module):
    """An operation on its samples, whose tensors are the module's arguments."""

    def __init__(self, entry: Any, samples: list[Any]):
        super().__init__()
        self._op, self._calls = STABLE.get(entry.name, entry.op), []
        self.tensors: list[torch.Tensor] = []
        for sample in samples:
            leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
            self._calls.append(([self._slot(leaf) for leaf in leaves], spec))

    def _slot(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        self.tensors.append(leaf.detach().clone())
        return _Tensor(len(self.tensors) - 1)

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        results = []
        for leaves, spec in self._calls:
            given = [tensors[x.index] if isinstance(x, _Tensor) else x for x in leaves]
            input, args, kwargs = pytree.tree_unflatten(given, spec)
            results.append(self._op(input, *args, **kwargs))
        return results


def name_of(entry: Any) -> str:
    """`fft.rfft`, or `std.unbiased` for a variant."""
    return ".".join(part for part in (entry.name, entry.variant_test_name) if part)


def attempt(entry: Any, samples: list[Any], compiled: bool) -> tuple[str, str]:
    """("right" | "called" | "refused" | "random" | "wrong" | "eager" | "export" | "crash", why)."""
    module = Samples(entry, samples).eval()
    arguments = tuple(module.tensors)
    try:
        with torch.no_grad():
            wanted = module(*(x.clone() for x in arguments))
    except Exception as error:  # noqa: BLE001  it is the finding
        return "eager", _line(error)
    try:
        check_tensors({f"x{i}": x for i, x in enumerate(arguments)})
        if compiled:
            program = tilewright.compile(module, arguments, target="cpu")
            called = "a function" * bool(program.fallback_ops)
            got = program(*(x.clone() for x in arguments))
        else:
            imported = import_module(module, arguments, fallback=True)
            called = ", ".join(sorted(_functions(imported.graph)))
            got = _evaluated(imported, arguments)
    except tilewright.TilewrightError as error:
        if any(word in str(error) for word in ("random", "dropout")):
            return "random", _line(error)
        return ("refused" if _is_exported(module, arguments) else "export"), _line(error)
    except Exception as error:  # noqa: BLE001  it is the finding
        return "crash", _line(error)
    try:
        is_place = entry.name in PLACES_OPEN.split()
        _compare(wanted, got, entry.name in UNWRITTEN.split(), is_place)
    except AssertionError as error:
        if not _is_as_near(wanted, got, _in_float64(module, arguments)):
            return "wrong", _line(error)
    return "called" if called else "right", called


def _functions(graph: Graph) -> set[str]:
    found = {n.attrs["function"].partition("(")[0] for n in graph.nodes if n.op.name == "call"}
    return found.union(*(_functions(r) for n in graph.nodes for r in n.regions.values()))


def _evaluated(imported: Imported, arguments: tuple[Any, ...]) -> Any:
    given = imported.signature.flatten(arguments, {})
    inputs = {name: to_numpy(tensor) for name, tensor in given.items()}
    states = {name: imported.states[name] for name in imported.states}
    graph = imported.graph
    outputs, _ = evaluate(graph, inputs, imported.weights.__getitem__, states, precision=None)
    return imported.signature.restore([from_numpy(x) for x in outputs])


def _is_exported(module: Samples, arguments: tuple[Any, ...]) -> bool:
    try:
        with torch.no_grad():
            torch.export.export(module, arguments, strict=False)
    except Exception:  # noqa: BLE001  it is the answer
        return False
    return True


def _compare(wanted: Any, got: Any, only_types: bool, places_open: bool) -> None:
    if places_open:  # of values and places, the values
        wanted, got = ([x[0] if isinstance(x, tuple) else x for x in y] for y in (wanted, got))
    left, right = pytree.tree_leaves(wanted), pytree.tree_leaves(got)
    assert len(left) == len(right), f"{len(right)} results for {len(left)}"
    for a, b in zip(left, right):
        if not isinstance(a, torch.Tensor):
            assert a == b or a != a or abs(a - b) <= 2e-5 * max(1, abs(a)), f"{b!r} for {a!r}"
            continue
        assert isinstance(b, torch.Tensor), f"a {type(b).__name__} for a tensor"
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{b.dtype}{b.shape}: {a.dtype}{a.shape}"
        if not only_types:
            bound = BOUNDS.get(str(a.dtype)[6:], 0)
            options = {"rtol": bound, "atol": bound, "equal_nan": True, "check_stride": False}
            torch.testing.assert_close(b, a.resolve_conj().resolve_neg(), **options)


def _in_float64(module: Samples, arguments: tuple[Any, ...]) -> Any:
    """What the samples give of wider numbers; None where the operation does not take them."""
    wide = [x.double() if x.is_floating_point() else x.clone() for x in arguments]
    try:
        with torch.no_grad():
            return module(*wide)
    except Exception:  # noqa: BLE001  it is the answer
        return None


def _is_as_near(wanted: Any, got: Any, exact: Any) -> bool:
    """Whether results of 16 bits are as near to those of float64 as eager's are.

    Eager adds up narrow sums, and computes positions, in the narrow dtype: no element may be off by
    more than the bound and twice what eager is off by at most.
    """
    results = [pytree.tree_leaves(x) for x in (wanted, got, exact)]
    if len({len(x) for x in results}) > 1:
        return False
    for a, b, e in zip(*results):
        is_narrow = isinstance(a, torch.Tensor) and a.dtype in (torch.float16, torch.bfloat16)
        if not is_narrow or (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        off = (a.double() - e.double()).abs()
        bound = BOUNDS[str(a.dtype)[6:]]
        room = bound + 2 * max(off[off.isfinite()].tolist(), default=0.0)
        if not torch.allclose(b.double(), e.double(), rtol=bound, atol=room, equal_nan=True):
            return False
    return True


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' | '.join(str(error).split(chr(10)))}"[:500]


def measure(entry: Any, dtype: torch.dtype, count: int, compiled: bool) -> dict[str, Any]:
    """What became of an entry's first samples, and why."""
    torch.manual_seed(0)
    samples: list[Any] = []
    try:
        for sample in entry.sample_inputs("cpu", dtype, requires_grad=False):
            samples.append(sample)
            if len(samples) == count:
                break
    except Exception as error:  # noqa: BLE001  it is the finding
        return {"kinds": {"none": 1}, "why": [_line(error)]}
    if not samples:
        return {"kinds": {"none": 1}, "why": []}
    kind, why = attempt(entry, samples, compiled)
    found = [(kind, why)] * len(samples)
    if kind not in ("right", "called") and len(samples) > 1:
        found = [attempt(entry, [sample], compiled) for sample in samples]
    kinds = Counter(kind for kind, _ in found)
    return {"kinds": dict(kinds), "why": list(dict.fromkeys(f"{k}: {w}" for k, w in found if w))}


def run(options: argparse.Namespace) -> None:
    """Append a line to the results for each entry and dtype that they lack."""
    path = Path(options.results)
    done = {line["key"] for line in read(path)} if path.exists() else set()
    shard, shards = map(int, options.shard.split("/"))
    wanted = options.only.split(",") if options.only else None
    entries = [e for i, e in enumerate(op_db) if i % shards == shard]
    with path.open("a") as results:
        for name in options.dtypes.split(","):
            dtype = getattr(torch, name)
            for entry in entries:
                key = f"{name_of(entry)} {name}"
                is_known = key in done or (wanted is not None and name_of(entry) not in wanted)
                if is_known or dtype not in entry.supported_dtypes("cpu"):
                    continue
                signal.signal(signal.SIGALRM, _stop)
                signal.alarm(SECONDS)
                try:
                    found = measure(entry, dtype, options.samples, options.compiled)
                except TimeoutError as error:
                    found = {"kinds": {"slow": 1}, "why": [str(error)]}
                finally:
                    signal.alarm(0)
                results.write(json.dumps({"key": key, **found}) + "\n")
                results.flush()


def _stop(*_: Any) -> None:
    raise TimeoutError(f"over {SECONDS} seconds")


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- the page ------------------------------------------------------------------------------------

COUNTED = ("crash", "wrong", "slow", "refused", "random", "called", "right")
OTHERS = ("export", "eager", "none", "unmeasured")
WORST = COUNTED + OTHERS
MEANING = {
    "right": "right, by kernels alone",
    "called": "right, with a call of PyTorch",
    "random": "refused: it draws random numbers",
    "refused": "refused",
    "wrong": "wrong",
    "crash": "an error that is not ours",
    "slow": f"not done in {SECONDS} seconds",
    "export": "torch.export takes no sample",
    "eager": "eager takes no sample",
    "none": "no samples on the CPU",
    "unmeasured": "not measured yet",
}


def write(lines: list[dict[str, Any]]) -> str:
    """docs/torch_ops.md: an entry is what its worst sample is."""
    kinds: dict[str, dict[str, Counter]] = defaultdict(dict)
    for line in lines:
        name, dtype = line["key"].rsplit(" ", 1)
        kinds[name][dtype] = Counter(line["kinds"])
    for entry in op_db:
        known = {str(dtype)[6:] for dtype in entry.supported_dtypes("cpu")}.intersection(DTYPES)
        by = kinds[name_of(entry)]
        by.update({d: Counter({"unmeasured": 1}) for d in known if not by})
    worst = {
        name: min((k for c in by.values() for k in c), key=WORST.index, default="none")
        for name, by in kinds.items()
    }
    counts = Counter(d for by in kinds.values() for d, c in by.items() if "unmeasured" not in c)
    measured = ", ".join(f"{dtype} ({counts[dtype]})" for dtype in DTYPES if counts[dtype])
    most = max(sum(c.values()) for by in kinds.values() for c in by.values())
    totals = Counter(worst.values())
    counted = sum(totals[k] for k in COUNTED)
    of = {d: Counter(_worst(by[d]) for by in kinds.values() if d in by) for d in DTYPES}
    rows = []
    for kind in (*COUNTED[::-1], *OTHERS):
        share = f"{totals[kind] / counted:.1%}" if kind in COUNTED else ""
        cells = [MEANING[kind], totals[kind], share, *(of[d][kind] for d in DTYPES)]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    page = [
        "# PyTorch operations",
        "",
        "Measured by `docs/torch_ops.py` over PyTorch's own database of operations"
        f" ({len(kinds)} entries of torch {torch.__version__.split('+')[0]}):",
        f"the first {most} samples, forward, of {measured} entries.",
        "An entry counts as its worst sample of any dtype; shares are of those that eager runs and",
        "torch.export takes. Results of 16 bits are right where they are as near to those of",
        "float64 as eager's are; sorts are measured as stable ones.",
        "",
        f"| entries that are | in any dtype | share | {' | '.join(DTYPES)} |",
        f"|---|---|---|{'---|' * len(DTYPES)}",
        *rows,
        "",
        "Below, a dtype stands in the column of its worst sample.",
        "",
        "| entry | by kernels | with a call | refused | other |",
        "|---|---|---|---|---|",
    ]
    for name in sorted(kinds):
        columns: dict[str, list[str]] = defaultdict(list)
        for dtype, counts in kinds[name].items():
            columns[_worst(counts)].append(dtype)
        known = ("right", "called", "refused")
        cells = [", ".join(columns.pop(k, [])) for k in known]
        other = "; ".join(f"{', '.join(v)}: {MEANING[k]}" for k, v in columns.items())
        page.append(f"| `{name}` | {' | '.join(cells)} | {other} |")
    return "\n".join(page) + "\n"


def _worst(kinds: Counter) -> str:
    return min(kinds, key=WORST.index)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "write"))
    parser.add_argument("results", nargs="+")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--only")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.action == "write":
        PAGE.write_text(write([line for path in options.results for line in read(Path(path))]))
    else:
        (options.results,) = options.results
        run(options)


if __name__ == "__main__":
    main()
