"""Signatures to plain data and back; what is read is held against the program it is for."""

import inspect
import keyword
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..ir.errors import UnsupportedModel, listed, shown
from ..ir.program import Program
from ..ir.signature import (
    KINDS,
    Constant,
    Container,
    Input,
    Output,
    Signature,
    Tree,
    path_to,
)
from .storage import damaged

_PLAIN = (type(None), bool, int, float, str)


def signature_to_json(signature: Signature) -> dict[str, Any]:
    """UnsupportedModel lists every constant and key that plain data cannot hold."""
    trees = {**signature.named(), "the result": signature.results}
    problems = [problem for where, tree in trees.items() for problem in _unfit(tree, where)]
    if problems:
        raise UnsupportedModel(
            "what the module takes or returns cannot be stored",
            facts=listed(problems),
            fix="take and return tensors, numbers, text and None, in containers with keys of text"
            " or whole numbers",
        )
    return {
        "positional": [_tree(tree) for tree in signature.positional],
        "keywords": {name: _tree(tree) for name, tree in signature.keywords.items()},
        "results": _tree(signature.results),
        "written": [list(pair) for pair in signature.written],
    }


def signature_from_json(data: Any, program: Program) -> Signature:
    """The inverse. ArtifactError when it is malformed, or does not fit the program."""
    try:
        signature = Signature(
            tuple(map(_read, data["positional"])),
            {_name(name): _read(tree) for name, tree in data["keywords"].items()},
            _read(data["results"]),
            tuple((name, index) for name, index in data["written"]),
        )
        problems = list(_misfits(signature, program))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        problems = [f"{type(error).__name__}: {str(error)[:300]}"]
    if problems:
        where = f"module.json, program {program.name}"
        raise damaged("the stored signature is", where, listed(problems))
    return signature


class _Default:
    """A parameter's default, which is compiled in: only that there is one is known."""

    def __repr__(self) -> str:
        return "..."


def parameters_to_json(parameters: inspect.Signature) -> list[dict[str, Any]]:
    """The parameters of a forward method."""
    return [
        {"name": p.name, "kind": p.kind.name, "is_optional": p.default is not p.empty}
        for p in parameters.parameters.values()
    ]


def parameters_from_json(data: Any) -> inspect.Signature:
    """The inverse: binds arguments as the forward method does.

    ValueError, TypeError and the like when it is malformed.
    """
    return inspect.Signature(
        [
            inspect.Parameter(
                _name(p["name"]),
                getattr(inspect.Parameter, p["kind"]),
                default=_Default() if p["is_optional"] is True else inspect.Parameter.empty,
            )
            for p in data
        ]
    )


# ---- writing -------------------------------------------------------------------------------


def _unfit(tree: Tree, where: str) -> Iterator[str]:
    if isinstance(tree, Constant) and type(tree.value) not in _PLAIN:
        yield f"{where} is {shown(tree.value)}, a {type(tree.value).__name__}"
    if isinstance(tree, Container):
        for index, part in enumerate(tree.parts):
            if tree.keys and type(tree.keys[index]) not in (str, int):
                yield f"{where} has the key {shown(tree.keys[index])}"
            yield from _unfit(part, path_to(where, tree, index))


def _tree(tree: Tree) -> dict[str, Any]:
    match tree:
        case Input(name):
            return {"input": name}
        case Output(index, is_number):
            return {"number" if is_number else "output": index}
        case Constant(value):
            return {"constant": value}
    return {
        "kind": tree.kind,
        "name": tree.name,
        "keys": list(tree.keys),
        "parts": [_tree(part) for part in tree.parts],
    }


# ---- reading -------------------------------------------------------------------------------


def _read(data: Any) -> Tree:
    match data:
        case {"input": str(name)}:
            return Input(name)
        case {"output": int(index)}:
            return Output(index)
        case {"number": int(index)}:
            return Output(index, is_number=True)
        case {"constant": value} if type(value) in _PLAIN:
            return Constant(value)
        case {"kind": str(kind), "name": str(name), "keys": list(keys), "parts": list(parts)}:
            return _container(kind, name, tuple(keys), tuple(map(_read, parts)))
    raise ValueError(f"{shown(data)} is no part of a signature")


def _container(kind: str, name: str, keys: tuple[Any, ...], parts: tuple[Tree, ...]) -> Container:
    is_keyed = kind in ("dict", "mapping", "namedtuple", "record")
    fits = kind in KINDS and len(keys) == (len(parts) if is_keyed else 0)
    if not fits or len(set(keys)) < len(keys) or any(type(key) not in (str, int) for key in keys):
        raise ValueError(f"a {kind[:20]} of {len(parts)} with the keys {shown(keys)}")
    if kind == "namedtuple":
        for each in (name, *keys):
            if _name(each).startswith("_"):
                raise ValueError(f"{shown(each)} is no name of a field")
    return Container(kind, parts, keys, name)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.isidentifier() or keyword.iskeyword(value):
        raise ValueError(f"{shown(value)} is not a name")
    return value


def _misfits(signature: Signature, program: Program) -> Iterator[str]:
    leaves = [leaf for tree in signature.named().values() for leaf in _leaves(tree)]
    results = list(_leaves(signature.results))
    if any(isinstance(leaf, Output) for leaf in leaves):
        yield "an argument is an output"
    if any(isinstance(leaf, Input) for leaf in results):
        yield "a result is an input"
    named = Counter(leaf.name for leaf in leaves if isinstance(leaf, Input))
    if named != Counter(program.inputs):
        yield f"its inputs are {shown(sorted(named))}, the program's {shown(program.inputs)}"
    written: Mapping[str, int] = dict(signature.written)
    if not written.keys() <= named.keys():
        yield f"it writes into {shown(sorted(map(str, written)))}"
    indices = [*written.values(), *(leaf.index for leaf in results if isinstance(leaf, Output))]
    wrong = [i for i in indices if type(i) is not int or not 0 <= i < len(program.outputs)]
    if wrong:
        yield f"it names the outputs {shown(wrong)} of {len(program.outputs)}"


def _leaves(tree: Tree) -> Iterator[Tree]:
    if not isinstance(tree, Container):
        yield tree
        return
    for part in tree.parts:
        yield from _leaves(part)
