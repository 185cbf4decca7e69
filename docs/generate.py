"""Write the parts of the documentation that are read off the code: `make docs`.

`tests/test_docs.py` fails while a file here differs from what this would write.
"""

import ast
import inspect
import re
from pathlib import Path

from tilewright.ir import ops as _ops  # noqa: F401  declares every op
from tilewright.ir.op import OPS, REQUIRED, Op
from tilewright.ir.switches import TABLE

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["ir", "frontend", "passes", "codegen", "runtime", "api", "cli"]
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
    return {docs / "ops.md": ops_page(), **partly}


def main() -> None:
    """Write every page that differs."""
    for path, text in pages().items():
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
