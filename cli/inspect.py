"""`tilewright inspect`: what is in an artifact, a checkpoint or the text of a graph."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..ir.errors import OptionError
from . import options
from .console import human_bytes, labelled, print_json

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from ..ir.program import Program
    from ..runtime.artifact import Artifact
    from ..runtime.stored_program import StoredProgram


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="An artifact, a checkpoint, an ONNX model, `demo`, or a graph's text (*.ir)."
        ),
    ],
    sizes: Annotated[
        str, typer.Option("--at", help="Sizes that bytes and operations are given for: t=1,seqs=1.")
    ] = "",
    source: Annotated[str, typer.Option(help="Print the source of this kernel.")] = "",
    graph: Annotated[
        bool, typer.Option("--graph", help="Print the graph that the artifact was built from.")
    ] = False,
    passes: Annotated[
        bool, typer.Option("--passes", help="Print what each pass did when it was built.")
    ] = False,
    program: Annotated[
        int, typer.Option(min=0, help="Which program of a module; the first is 0.")
    ] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Show what is in an artifact, a checkpoint or a graph's text; nothing is run or compiled."""
    from ..api.artifact_facts import check_artifact  # loads NumPy, which help texts do without
    from ..runtime.artifact import is_artifact, open_artifact

    path = _find(model)
    if is_artifact(path):
        artifact = open_artifact(path)
        check_artifact(artifact, path)
        stored = _program_of(artifact, program)
        if source:
            print(_kernel_source(stored.program, source), end="")
        elif graph:
            print(stored.graph_text or "", end="")
        elif passes:
            _print_passes(artifact.facts.get("programs", [artifact.facts])[program], as_json)
        else:
            facts = artifact_facts(artifact, sizes, program)
            print_json(facts) if as_json else print(render_artifact(facts))
        return
    if source or graph or passes or sizes:
        raise OptionError(
            f"{model} is no artifact",
            facts="--at, --source, --graph and --passes look into what was compiled",
            fix=f"build one: tilewright compile {model} -o artifact",
        )
    facts = _read_other(path)
    print_json(facts) if as_json else print(_render_plain(facts))


def _find(model: str) -> Path:
    if model == "demo":
        from ..api.demo_model import demo_path

        return demo_path()
    path = Path(model)
    if not path.exists():
        raise OptionError(
            f"{model} does not exist",
            fix="give an artifact, a .gguf file, a Hugging Face folder, a graph's text, or demo",
        )
    return path


# ---- artifacts -----------------------------------------------------------------------------


def _program_of(artifact: "Artifact", index: int) -> "StoredProgram":
    if index >= len(artifact.programs):
        raise OptionError(
            f"--program is {index}", facts=f"the artifact has {len(artifact.programs)}, from 0 on"
        )
    return artifact.programs[index]


def artifact_facts(artifact: "Artifact", sizes: str = "", index: int = 0) -> dict:
    """Everything `--json` prints: the program, its kernels, and what they must do at `sizes`."""
    from ..ir.dim import evaluate
    from ..ir.types import dtype_of

    program = artifact.programs[index].program
    values = bind_sizes(program, sizes)
    kernels = _kernel_facts(program, values)
    return {
        "name": program.name,
        "target": program.target,
        "facts": {k: v for k, v in artifact.facts.items() if k not in ("passes", "programs")},
        "call": _call_facts(artifact),
        "weights": _tally((dtype_of(a.dtype), a.nbytes) for a in artifact.weights.values()),
        "kv_page_bytes": program.kv.page_bytes if program.kv else None,
        "kv_page_tokens": program.kv.page_size if program.kv else None,
        "launches": sum(row["launches"] for row in kernels),
        "sizes": values,
        "arena_bytes": evaluate(program.arena_bytes, values),
        "kernels": kernels,
    }


def _call_facts(artifact: "Artifact") -> dict | None:
    """How a module is called, and what each of its programs is for; None for a language model."""
    from ..ir.signature import text_of

    if artifact.parameters is None:
        return None
    programs = []
    for stored in artifact.programs:
        program, signature = stored.program, stored.signature
        assert signature is not None, "a module's program is stored with one"
        given = {name: program.buffers[name].type for name in program.inputs}
        results = dict(enumerate(program.buffers[name].type for name in program.outputs))
        names = list(artifact.parameters.parameters)
        programs.append(
            {
                "takes": {n: text_of(t, given) for n, t in signature.named(names).items()},
                "gives": text_of(signature.results, results),
                "dims": {s.name: s.span for s in program.symbols.values()},
                "steps": len(program.steps),
            }
        )
    return {"parameters": str(artifact.parameters), "programs": programs}


def bind_sizes(program: "Program", text: str) -> dict[str, int]:
    """Values for the program's dims: those of `text`, else the hint, else the least."""
    symbols = program.symbols
    values = {name: symbol.hint or symbol.lo for name, symbol in symbols.items()}
    for item in filter(None, text.split(",")):
        name, _, number = (part.strip() for part in item.partition("="))
        if name not in symbols or not number.isdigit():
            raise OptionError(
                f"--at {item!r} is not a size",
                facts=f"the program's dims are {', '.join(symbols)}",
                fix="write --at t=1,seqs=1",
            )
        symbol, value = symbols[name], int(number)
        if value < symbol.lo or (symbol.hi is not None and value > symbol.hi):
            raise OptionError(
                f"{name} is {value}",
                facts=f"its range is {symbol.span}",
            )
        values[name] = value
    return values


def _kernel_facts(program: "Program", values: dict[str, int]) -> list[dict]:
    """One item a kernel, the one that moves the most bytes first."""
    from ..ir.dim import evaluate
    from ..ir.steps import launches
    from ..ir.target import get_target  # loads NumPy, which help texts do without
    from ..ir.types import DTYPES

    target = get_target(program.target)
    used: dict[str, dict] = {}
    for step in launches(program.steps):
        chosen = evaluate(step.select, values)
        for choice in step.choices:
            if choice.lo <= chosen and (choice.hi is None or chosen <= choice.hi):
                kernel = program.kernels[choice.kernel]
                row = used.setdefault(
                    choice.kernel,
                    {
                        "name": kernel.name,
                        "template": kernel.template,
                        "language": kernel.language,
                        "launches": 0,
                        "bytes": 0,
                        "operations": 0,
                        "least_us": 0.0,
                        "bound_by": "",
                        "schedule": choice.schedule,
                        "first": step.loc,
                    },
                )
                moved, done = evaluate(step.traffic, values), evaluate(step.operations, values)
                products = [DTYPES[name] for name in step.products]
                took = {
                    "memory": target.seconds(moved, 0) * 1e6,
                    "arithmetic": target.seconds(0, done, *products) * 1e6,
                    "launch": target.launch_us,
                }
                row["launches"] += 1
                row["bytes"] += moved
                row["operations"] += done
                row["least_us"] += max(took["memory"], took["arithmetic"]) + took["launch"]
                row["bound_by"] = max(took, key=lambda cause: took[cause])
    return sorted(used.values(), key=lambda row: -row["bytes"])


def _tally(tensors: Iterable[tuple[Any, int]]) -> dict[str, dict[str, int]]:
    """How many tensors of each kind, and their bytes."""
    found: dict[str, dict[str, int]] = {}
    for kind, nbytes in tensors:
        row = found.setdefault(str(kind), {"count": 0, "bytes": 0})
        row["count"] += 1
        row["bytes"] += nbytes
    return found


def _kernel_source(program: "Program", name: str) -> str:
    kernels = program.kernels
    if name not in kernels:
        raise OptionError(f"no kernel named {name!r}", facts=f"kernels: {', '.join(kernels)}")
    return kernels[name].source


def _print_passes(facts: dict, as_json: bool) -> None:
    passes = facts.get("passes", [])
    if as_json:
        print_json(passes)
        return
    for each in passes:
        fired = ", ".join(f"{rule} x {count}" for rule, count in each["fired"].items())
        name = each["pass"] if each["changed"] else f"({each['pass']})"
        print(f"{name:32} {each['ms']:8.1f} ms {each['nodes']:6} nodes  {fired}".rstrip())
        for item in each["declined"]:
            print(f"    declined {item['rule']} x {item['count']}: {item['reason']}")
        for note in each["notes"]:
            print(f"    {note}")


def render_artifact(facts: dict) -> str:
    """The facts as text: a head, then a line a kernel."""
    about = facts["facts"]
    head = [("program", f"{facts['name']} for {facts['target']}")]
    if "architecture" in about:
        head.append(("model", f"{about['architecture']}, {about['num_layers']} layers"))
        head.append(("context", f"{about['context_len']} tokens"))
    if facts["call"]:
        head.append(("module", f"{about['module']}{facts['call']['parameters']}"))
    weights = (
        f"{row['count']} {dtype} ({human_bytes(row['bytes'])})"
        for dtype, row in facts["weights"].items()
    )
    head.append(("weights", ", ".join(weights)))
    if facts["kv_page_bytes"]:
        page = human_bytes(facts["kv_page_bytes"])
        head.append(("KV page", f"{facts['kv_page_tokens']} tokens, {page} over all layers"))
    sizes = ", ".join(f"{name}={value}" for name, value in facts["sizes"].items())
    if sizes:
        head.append(("sizes", f"{sizes} (choose with --at)"))
    head.append(("arena", human_bytes(facts["arena_bytes"])))
    head.append(("launches", f"{facts['launches']} a step, of {len(facts['kernels'])} kernels"))
    least = sum(row["least_us"] for row in facts["kernels"])
    head.append(("least", f"{least:,.1f} us at the target's rates, launches included"))
    lines = [labelled(head)]
    for index, each in enumerate(facts["call"]["programs"] if facts["call"] else []):
        taken = ", ".join(f"{name}: {kind}" for name, kind in each["takes"].items())
        dims = ", ".join(f"{name} in {span}" for name, span in each["dims"].items())
        lines.append(f"\nprogram {index}, {each['steps']} steps{dims and ', for '}{dims}")
        lines += [f"  takes {taken}", f"  gives {each['gives']}"]
    lines.append(
        f"\n{'kernel':32} {'template':10} {'runs':>5} {'bytes':>10} {'Mop':>9} {'least us':>9}"
        "  bound by    first used by"
    )
    for row in facts["kernels"]:
        lines.append(
            f"{row['name']:32} {row['template']:10} {row['launches']:>5} "
            f"{human_bytes(row['bytes']):>10} {row['operations'] / 1e6:>9.2f}"
            f" {row['least_us']:>9.1f}  {row['bound_by']:10}  {row['first'] or ''}"
        )
        lines += [f"  {row['schedule']}"] if row["schedule"] else []
    return "\n".join(lines)


# ---- checkpoints and graphs ----------------------------------------------------------------


def _read_other(path: Path) -> dict:
    from ..frontend.gguf import is_gguf
    from ..frontend.onnx.lm_folder import find_onnx

    if is_gguf(path):
        return gguf_facts(path)
    found = find_onnx(path)
    if found is not None:
        return onnx_facts(found.model)
    return folder_facts(path) if path.is_dir() else graph_facts(path)


def gguf_facts(path: Path) -> dict:
    """Header of a GGUF file: metadata but for long lists, and tensors by block format."""
    from ..frontend.gguf import read_gguf

    file = read_gguf(path)
    kinds = _tally((tensor.kind, tensor.nbytes) for tensor in file.tensors.values())
    metadata = {
        key: f"[{len(value)} items]" if isinstance(value, list | tuple) else value
        for key, value in file.metadata.items()
    }
    return {"kind": "GGUF file", "path": str(path), "tensors": kinds, "metadata": metadata}


def onnx_facts(path: Path) -> dict:
    """Opsets, inputs and outputs of an ONNX model, its weights, and how often each op occurs."""
    from ..api.compile_model import require_onnx

    require_onnx()
    from ..frontend.onnx.functions import opsets
    from ..frontend.onnx.import_model import declared_shapes
    from ..frontend.onnx.model_file import open_model

    file = open_model(path)
    graph = file.proto.graph
    ops = Counter(node.op_type for node in graph.node)
    arrays = file.initializers().values()
    return {
        "kind": "ONNX model",
        "path": str(path),
        "tensors": _tally((array.dtype, array.nbytes) for array in arrays),
        "metadata": {
            "name": graph.name,
            "producer": file.proto.producer_name,
            "opsets": {name or "ai.onnx": number for name, number in opsets(file.proto).items()},
            "inputs": {
                name: shape and list(shape) for name, shape in declared_shapes(file).items()
            },
            "outputs": [output.name for output in graph.output],
            "nodes": len(graph.node),
            "ops": dict(ops.most_common()),
        },
    }


def folder_facts(path: Path) -> dict:
    """config.json and the weights of a Hugging Face folder."""
    from ..frontend.shards import read_folder, read_json

    config = read_json(path / "config.json")
    kinds = _tally((array.dtype, array.nbytes) for array in read_folder(path).values())
    return {"kind": "Hugging Face folder", "path": str(path), "tensors": kinds, "metadata": config}


def graph_facts(path: Path) -> dict:
    """What a graph's text declares, and how often each op occurs."""
    from ..ir.parse import parse_graph
    from ..ir.verify import verify
    from .opt import read_text

    parsed: Graph = parse_graph(read_text(str(path)), path=str(path))
    verify(parsed)
    ops = Counter(node.op.name for node in parsed.nodes)
    return {
        "kind": "graph",
        "path": str(path),
        "metadata": {
            "name": parsed.name,
            "dims": {s.name: s.span for s in parsed.symbols.values()},
            "inputs": {v.name: str(v.type) for v in parsed.inputs},
            "outputs": [str(v.type) for v in parsed.outputs],
            "weights": len(parsed.weights),
            "states": {v.name: str(v.type) for v in parsed.states},
            "nodes": len(parsed.nodes),
            "ops": dict(ops.most_common()),
        },
    }


def _render_plain(facts: dict) -> str:
    lines = [f"{facts['kind']} {facts['path']}"]
    for kind, row in facts.get("tensors", {}).items():
        lines.append(f"  {row['count']:>5} tensors {kind}, {human_bytes(row['bytes'])}")
    for key, value in facts["metadata"].items():
        text = str(value)
        lines.append(f"  {key} = {text if len(text) <= 120 else text[:117] + '...'}")
    return "\n".join(lines)
