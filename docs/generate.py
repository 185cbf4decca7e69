"""Write the parts of the documentation that are read off the code: `make docs`.

`tests/test_docs.py` fails while a file here differs from what this would write.
"""

import ast
import inspect
import re
from pathlib import Path

from tilewright.api.machine import DEVICES
from tilewright.codegen.templates import TEMPLATES
from tilewright.ir import ops as _ops  # noqa: F401  declares every op
from tilewright.ir.op import OPS, REQUIRED, Op
from tilewright.ir.switches import TABLE
from tilewright.ir.target import TARGETS
from tilewright.ir.types import DTYPES, TensorType

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["ir", "frontend", "passes", "codegen", "runtime", "autotune", "api", "cli"]
SOURCES = {".py", ".h", ".cpp"}

KINDS = {
    "elementwise": "one output element depends on one element of each input (after broadcasting)",
    "view": "a renaming of indices, no arithmetic",
    "source": "no tensor operand",
    "reduce": "collapses axes",
    "scan": "a running reduction",
    "gather": "an index decides which element is read",
    "scatter": "an index decides which element is written",
    "sort": "puts the elements of an axis in order",
    "contract": "sums of products",
    "attention": "a composite around two contractions",
    "composite": "taken apart by `decompose` unless a kernel exists for it as a whole",
    "state": "consumes a state and returns its new value",
    "sample": "one row of scores to one choice",
    "region": "owns sub-graphs, and decides which of them runs and how often",
    "call": "a function outside generated code; its results' sizes may depend on data",
}


def ops_page() -> str:
    """docs/ops.md: every declared op, by kind."""
    lines = [
        "# Ops",
        "",
        "Generated from the declarations in `ir/ops/` by `make docs`; see",
        "[adding an op](adding_an_op.md) for how one is declared.",
        "",
    ]
    for kind, meaning in KINDS.items():
        members = [op for op in OPS.values() if op.kind == kind]
        if members:
            lines += [f"## {kind}", "", f"{meaning[0].upper()}{meaning[1:]}.", ""]
            lines += [line for op in members for line in _op_lines(op)]
    unknown = {op.kind for op in OPS.values()} - KINDS.keys()
    assert not unknown, f"docs/generate.py: say what these kinds of op mean: {sorted(unknown)}"
    return "\n".join(lines).rstrip() + "\n"


def _op_lines(op: Op) -> list[str]:
    split = len(op.operands) - op.num_optional
    names = list(op.operands[:split])
    if op.is_variadic:
        names[-1] = f"*{names[-1]}"
    names += [f"{name}=None" for name in op.operands[split:]]
    attrs = [_attr_text(name, *declared) for name, declared in op.attrs.items()]
    signature = f"{op.name}({', '.join(names)})" + (f" {{{', '.join(attrs)}}}" if attrs else "")
    lines = [f"**`{signature}`**", ""]
    if op.doc:
        lines += [*op.doc.splitlines(), ""]
    return lines


def _attr_text(name: str, annotation: object, default: object) -> str:
    kind = "" if annotation is inspect.Parameter.empty else f": {_annotation_text(annotation)}"
    return f"{name}{kind}" if default is REQUIRED else f"{name}{kind} = {default!r}"


def _annotation_text(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def switches_table() -> str:
    """The table of switches, one line each."""
    lines = ["| variable | in Python | values | what it does |", "|---|---|---|---|"]
    for switch in TABLE:
        values = ", ".join(switch.choices) if switch.choices else switch.kind
        lines.append(f"| `{switch.variable}` | `{switch.name}` | {values} | {switch.doc} |")
    return "\n".join(lines)


def files_table() -> str:
    """One line a file: the first sentence of what each says of itself."""
    lines = []
    for layer in LAYERS:
        files = [
            file
            for file in sorted((ROOT / layer).rglob("*"))
            if file.suffix in SOURCES and file.read_text().strip()
        ]
        if files:
            lines += [f"### {layer}/", "", "| file | what it is |", "|---|---|"]
            lines += [
                f"| `{file.relative_to(ROOT / layer)}` | {first_sentence(file)} |" for file in files
            ]
            lines.append("")
    return "\n".join(lines).rstrip()


def first_sentence(file: Path) -> str:
    """The first sentence of a module's docstring, or of the comment that a C++ file opens with."""
    text = file.read_text()
    if file.suffix == ".py":
        opening = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"\s*((?://[^\n]*\n)+)", text)
        opening = re.sub(r"^// ?", "", comment[1], flags=re.MULTILINE) if comment else ""
    assert opening, f"{file}: begin with a sentence on what the file is"
    paragraph = " ".join(opening.split("\n\n")[0].split())
    sentence = re.match(r".*?[.!?](?=\s+[A-Z`]|$)", paragraph)
    return (sentence[0] if sentence else paragraph).replace("|", "\\|")


def unsupported_page() -> str:
    """docs/unsupported.md: what is refused, from the tables and the refusals themselves."""
    lines = [
        "# What is not supported",
        "",
        "Generated from the code by `make docs`: from the tables of targets, dtypes and ops,",
        "and from the text of every refusal (… stands for what depends on the model). What is",
        "refused is an error that names the op, its place in the model, and what to do; nothing",
        "runs in another way in silence. PyTorch operations that have no row are an open set: they",
        "are called in PyTorch, and the report names each ([which those are](torch_ops.md));",
        "`strict=True` refuses them.",
        "",
        *_dtype_lines(),
        *_op_lines_without_kernel(),
        "## PyTorch operations",
        "",
        "What is refused, as no call could stand for it; what draws random numbers is as well:",
        "",
        *_refusals("frontend/aten", {"Refused"}),
        "What the importer (`frontend/aten/`) declines of operations that it knows, so that it is",
        "called in PyTorch, unless it draws random numbers:",
        "",
        *_refusals("frontend/aten", {"Declined"}),
        "## Models",
        "",
        "What is refused of a module as a whole, or cannot be served from a paged cache:",
        "",
        *_refusals("", {"UnsupportedModel", "Mixing"}),
        "## Checkpoints",
        "",
        *_refusals("frontend", {"CheckpointError"}, "not read|not safe|no fast form|pickled"),
        "## Kernels",
        "",
        "What code generation declines; passes and groups see to it that models do not meet it:",
        "",
        *_refusals("codegen", {"UnsupportedOp"}),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _dtype_lines() -> list[str]:
    """Which dtypes each target computes in, and which it multiplies on a matrix unit."""
    targets = list(TARGETS.values())
    lines = [
        "## Dtypes",
        "",
        "What a target computes in, and what its matrix unit is given for products of two operands",
        "of the dtype; `-`: it only stores the dtype, and casts it where it is read.",
        "",
        f"| dtype | {' | '.join(f'`{t.name}`' for t in targets)} |",
        f"|---|{'---|' * len(targets)}",
    ]
    for dtype in DTYPES.values():
        cells = []
        for target in targets:
            op = None if dtype.is_packed else target.matrix_op(dtype, dtype)
            fed = "" if op is None else f", products as {op.operand}"
            cells.append("yes" + fed if dtype in target.dtypes else f"-{fed}")
        lines.append(f"| {dtype} | {' | '.join(cells)} |")
    lines += ["", "Dtypes of fewer than 8 bits are those of weights only.", ""]
    for target in targets:
        if target.kind not in DEVICES:
            lines += [f"Programs for `{target.name}` are built, and no device here runs them.", ""]
    return lines


def _op_lines_without_kernel() -> list[str]:
    """Ops that are taken apart or run as steps, and operands that their kernels refuse."""
    kinds = {kind for template in TEMPLATES for kind in template.kinds}
    steps = [op.name for op in OPS.values() if op.kind in ("region", "call")]
    lost = [op.name for op in OPS.values() if op.kind not in kinds and op.name not in steps]
    assert not lost, f"no template, step or decomposition takes {lost}"
    lines = ["## Ops", "", f"No kernel, but steps of a program, are: {', '.join(steps)}.", ""]
    apart = [op.name for op in OPS.values() if op.kind == "composite" and not op.is_whole]
    lines += [f"Taken apart into other ops, with no kernel of their own: {', '.join(apart)}.", ""]
    for op in OPS.values():
        if op.refusal is None:
            continue
        count = len(op.operands) - op.num_optional
        reasons: dict[str, list[str]] = {}
        for dtype in DTYPES.values():
            reason = op.refusal(*[TensorType((1, 1, 1, 64), dtype)] * count)
            if reason:
                reasons.setdefault(reason, []).append(dtype.name)
        for reason, names in reasons.items():
            lines += [f"`{op.name}` of {', '.join(names)}: {reason}.", ""]
    return lines


def _refusals(folder: str, errors: set[str], pattern: str = "") -> list[str]:
    """A table of what the files of `folder` raise: the operations it is about, and the reason."""
    rows: dict[tuple[str, str], None] = {}
    files = [f for layer in LAYERS for f in sorted((ROOT / layer).rglob("*.py"))]
    for file in (f for f in files if f.is_relative_to(ROOT / folder)):
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            names = [
                node.value.split(".")[0]
                for decorator in function.decorator_list
                for node in ast.walk(decorator)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
                if re.fullmatch(r"[\w.]+", node.value)
            ]
            about = ", ".join(dict.fromkeys(f"`{n}`" for n in names)) or f"`{file.name}`"
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in errors:
                    reason = _as_written(node.args[0]) if node.args else ""
                    if re.search(pattern, reason) and reason.strip("… "):
                        rows.setdefault((about, reason))
    return ["| where | what |", "|---|---|", *(f"| {a} | {r} |" for a, r in rows), ""]


def _as_written(text: ast.expr) -> str:
    """A message, with … for what is put in."""
    match text:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(map(_as_written, parts))
        case ast.BinOp(left=left, right=right):
            return _as_written(left) + _as_written(right)
    return "…"


def between_marks(page: str, mark: str, text: str) -> str:
    """`page` with what stands between `<!-- mark -->` and `<!-- end of mark -->` replaced."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    assert begin in page, f"the page lost its mark {begin}"
    assert end in page, f"the page lost its mark {end}"
    head, rest = page.split(begin, 1)
    _, tail = rest.split(end, 1)
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"


def pages() -> dict[Path, str]:
    """Every page that is generated, whole or in part, with the text it should have."""
    docs = ROOT / "docs"
    marked = {
        docs / "architecture.md": ("files", files_table()),
        docs / "debugging.md": ("switches", switches_table()),
    }
    partly = {
        page: between_marks(page.read_text(), mark, text) for page, (mark, text) in marked.items()
    }
    return {docs / "ops.md": ops_page(), docs / "unsupported.md": unsupported_page(), **partly}


def main() -> None:
    """Write every page that differs."""
    for path, text in pages().items():
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
