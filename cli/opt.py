"""`tilewright opt`: run passes over the text of a graph, so that a bug report is a file."""

import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated

import typer

from ..ir.errors import OptionError
from .console import decoded, print_json, read_input


def opt(
    file: Annotated[
        str, typer.Argument(help="A graph as text, or an ONNX model; - reads standard input.")
    ] = "",
    passes: Annotated[
        str, typer.Option("--passes", "-p", help="Passes to run: a,b{option=value}.")
    ] = "",
    pipeline: Annotated[str, typer.Option(help="A named pipeline to run; see --list.")] = "",
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Then group the nodes into kernels, and place their values."),
    ] = False,
    stop_after: Annotated[str, typer.Option(help="Stop after this pass.")] = "",
    check: Annotated[
        int,
        typer.Option(
            min=0,
            max=2,
            help="0: trust the passes; 1: verify after each; 2: also run the reference after each.",
        ),
    ] = 1,
    dump: Annotated[
        Path | None, typer.Option(help="Write the graph after each pass that changed it, here.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the graph.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Print what each pass did, to standard error.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print graph and report (or the list) as JSON.")
    ] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List passes, their options, and pipelines.")
    ] = False,
) -> None:
    """Run passes over the text of a graph and print the graph that comes out."""
    from .. import passes as layer  # loads every pass

    if list_all:
        listed = {
            "passes": [_described(name, each) for name, each in layer.registry().items()],
            "pipelines": {name: [str(p) for p in make()] for name, make in layer.PIPELINES.items()},
        }
        if as_json:
            print_json(listed)
        else:
            print(_render_list(listed))
        return
    if not file:
        raise typer.BadParameter("name a file, or - for standard input", param_hint="FILE")
    if (passes and pipeline) or not (passes or pipeline or plan):
        raise typer.BadParameter(
            "give one of --passes and --pipeline, or --plan", param_hint="--passes"
        )
    if pipeline and pipeline not in layer.PIPELINES:
        raise OptionError(
            f"no pipeline named {pipeline!r}", facts=f"pipelines: {', '.join(layer.PIPELINES)}"
        )

    from ..api.compile_model import import_onnx
    from ..api.watching import start_logging
    from ..ir.parse import parse_graph
    from ..ir.text import print_graph, print_plan
    from ..ir.verify import verify

    start_logging()
    if file.endswith(".onnx"):
        graph = import_onnx(file).graph
    else:
        graph = parse_graph(read_text(file), path="<stdin>" if file == "-" else file)
    verify(graph)  # the text's own faults are not those of the first pass
    chosen = layer.parse_pipeline(pipeline or passes) if pipeline or passes else ()
    result = layer.run(graph, chosen, check=check, dump=dump, stop_after=stop_after or None)
    text = print_graph(result.graph)
    if plan:
        from ..codegen.group import make_plan

        text = print_plan(make_plan(result.graph, result.report))
    if report and not as_json:
        print(result.report, file=sys.stderr)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        print_json({"graph": text, "report": result.report.to_json()})
    elif output is None:
        print(text, end="")


def read_text(file: str) -> str:
    """The text of a file, or of standard input for "-". OptionError when there is no text."""
    if file == "-":
        return read_input()
    path = Path(file)
    if not path.is_file():
        other = "is a folder" if path.is_dir() else "is a device, a pipe or a socket"
        what = other if path.exists() else "does not exist"
        raise OptionError(f"{file} {what}", fix="give the path of a graph's text, or -")
    with decoded(file):
        return path.read_text(encoding="utf-8")


def _described(name: str, each: type) -> dict:
    return {
        "name": name,
        "doc": (each.__doc__ or "").splitlines()[0],
        "options": {f.name: None if f.default is MISSING else f.default for f in fields(each)},
    }


def _render_list(listed: dict) -> str:
    width = max(len(each["name"]) for each in listed["passes"]) + 2
    lines = ["passes:"]
    for each in listed["passes"]:
        lines.append(f"  {each['name']:<{width}}{each['doc']}")
        lines += [f"  {'':<{width}}{key} = {value}" for key, value in each["options"].items()]
    lines.append("pipelines:")
    for name, members in listed["pipelines"].items():
        lines.append(f"  {name}")
        lines += [f"    {member}" for member in members]
    return "\n".join(lines)
