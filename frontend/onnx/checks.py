"""What is wrong with a model before its first node is imported, all of it at once."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from ...ir.errors import CheckpointError, UnsupportedModel, listed, shown
from .functions import opsets
from .model_file import ModelFile, Source, all_nodes, domain_of, graphs_of, open_model
from .operators import MICROSOFT

_ONNX = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
_KIND = AttributeProto.AttributeType


def checked_model(source: Source) -> ModelFile:
    """A model from a file or in memory; reads no weights.

    CheckpointError for what is no model, or for a graph out of order; UnsupportedModel for opsets
    that are not known.
    """
    file = open_model(source)
    _check(file.proto, str(file.path or ""))
    return file


def _check(model: ModelProto, where: str) -> None:
    if not all(isinstance(text, str) for text in _texts(model)):
        raise CheckpointError("a name in the model is no UTF-8", where=where)
    problems = list(_opset_problems(model))
    if problems:
        raise UnsupportedModel(
            "the model is of opsets that are not known",
            where=where,
            facts=listed(problems),
            fix="convert it by onnx.version_converter, or install a newer onnx package",
        )
    versions = opsets(model)
    problems = list(_graph_problems(model.graph, set(), "the graph", versions))
    for function in model.functions:
        known = {**versions, **opsets(function)}
        part = f"function {function.name}"
        problems += _node_problems(function.node, set(function.input), part, set(), known)
    if problems:
        raise CheckpointError(
            "the model's graph is damaged",
            where=where,
            facts=listed(problems),
            fix="export it again; onnx.checker.check_model says more",
        )


def _texts(model: ModelProto) -> Iterator[Any]:
    """Names, which protobuf gives as bytes where they are no UTF-8."""
    graphs = [model.graph, *(g for node in all_nodes(model) for g in graphs_of(node))]
    for graph in graphs:
        for named in (*graph.input, *graph.output, *graph.initializer):
            yield named.name
    for node in all_nodes(model):
        yield from (node.op_type, node.domain, node.name, node.overload, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
    for versions in (model, *model.functions):
        yield from (opset.domain for opset in versions.opset_import)


def _opset_problems(model: ModelProto) -> Iterator[str]:
    functions = set(map(domain_of, model.functions))
    versions = opsets(model)
    if not versions:
        yield "it names no opset"
    known = {domain: _newest(domain) for domain in _ONNX}
    named_by = [("", versions), *((f"function {f.name}: ", opsets(f)) for f in model.functions)]
    for where, each in named_by:
        for domain, version in each.items():
            newest = known.get(domain, 1 << 30)
            if not 1 <= version <= newest:
                yield f"{where}{domain or 'ai.onnx'} {version}: known are 1 to {newest}"
    named = set(map(domain_of, all_nodes(model)))
    for domain in sorted(named - known.keys() - functions - {MICROSOFT}):
        yield f"domain {shown(domain)}, whose operators are in no table and no function"
    for domain in sorted((named & (known.keys() | {MICROSOFT})) - versions.keys()):
        yield f"domain {domain or 'ai.onnx'} is used, and no opset of it is named"


def _newest(domain: str) -> int:
    return onnx.defs.C.schema_version_map()[domain][1]


def _graph_problems(
    graph: GraphProto, outer: set[str], where: str, versions: Mapping[str, int]
) -> Iterator[str]:
    inputs = [value.name for value in graph.input]
    stored = {tensor.name for tensor in graph.initializer}
    for name in sorted({name for name in inputs if inputs.count(name) > 1}):
        yield f"{where}: the input {shown(name)} is there twice"
    if graph.sparse_initializer:
        yield f"{where}: it has sparse initializers, which are not read"
    names = {*inputs, *stored}
    yield from _node_problems(graph.node, names, where, outer, versions)
    for output in graph.output:
        if output.name not in names | outer:
            yield f"{where}: the output {shown(output.name)} is computed by no node"


def _node_problems(
    nodes: Sequence[NodeProto],
    names: set[str],
    where: str,
    outer: set[str],
    versions: Mapping[str, int],
) -> Iterator[str]:
    """Names that are read before they are there, or given twice; `names` is filled up."""
    later = {name for node in nodes for name in node.output if name}
    for node in nodes:
        at = f"{where}, {node.op_type} {shown(node.name or next(iter(node.output), ''))}"
        for name in node.input:
            if name and name not in names and name not in outer:
                own = name in node.output
                yield f"{at}: it reads {shown(name)}, which " + (
                    "it computes itself: the graph has a cycle"
                    if own
                    else "is computed after it: the graph is not in order, or has a cycle"
                    if name in later
                    else "nothing computes"
                )
        yield from (f"{at}: {problem}" for problem in _schema_problems(node, versions))
        for graph in graphs_of(node):
            inner = f"{at}, {shown(graph.name)}"
            yield from _graph_problems(graph, names | outer, inner, versions)
        for name in node.output:
            if name and name in names:
                yield f"{at}: {shown(name)} is given a second time"
            names.add(name)


class _Rules(NamedTuple):
    """What ONNX says of an operator's nodes."""

    kinds: Mapping[str, int]  # of attributes
    required: frozenset[str]  # attributes
    inputs: tuple[tuple[int, str], ...]  # that may not be left out: number and name


def _schema_problems(node: NodeProto, versions: Mapping[str, int]) -> Iterator[str]:
    names = [attribute.name for attribute in node.attribute]
    if len(set(names)) < len(names):
        yield f"its attributes {', '.join(map(shown, names))} name one twice"
    domain = domain_of(node)
    rules = _rules(node.op_type, versions.get(domain, 0), domain)
    for name in sorted(rules.required - set(names)):
        yield f"its attribute {name} is missing"
    for number, name in rules.inputs:
        if number >= len(node.input) or not node.input[number]:
            yield f"its input {number}, {name}, is left out"
    for attribute in node.attribute:
        kind = rules.kinds.get(attribute.name, attribute.type)
        if attribute.type != kind:
            names = (_KIND.Name(number) for number in (attribute.type, kind))
            yield "its attribute {} is of kind {}, not {}".format(attribute.name, *names)


@lru_cache(maxsize=4096)
def _rules(name: str, version: int, domain: str) -> _Rules:
    """Those of an operator that ONNX defines; none for another."""
    if not onnx.defs.has(name, version, domain):
        return _Rules({}, frozenset(), ())
    schema = onnx.defs.get_schema(name, version, domain)
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return _Rules(
        {key: attribute.type.value for key, attribute in schema.attributes.items()},
        frozenset(key for key, attribute in schema.attributes.items() if attribute.required),
        tuple((i, x.name) for i, x in enumerate(schema.inputs) if x.option == single),
    )
