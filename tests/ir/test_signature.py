"""Signatures: calls taken apart and results put together, and the same from plain data."""

import copy
import inspect
import json
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.ir.dim import symbol
from tilewright.ir.errors import ArtifactError, ShapeError, UnsupportedModel
from tilewright.ir.program import Buffer, Program
from tilewright.ir.signature import (
    Constant,
    Container,
    Input,
    Output,
    Record,
    Signature,
)
from tilewright.ir.types import TensorType, f32
from tilewright.runtime.signature_json import (
    parameters_from_json,
    parameters_to_json,
    signature_from_json,
    signature_to_json,
)

A, B, C = np.zeros(1), np.ones(2), np.full(3, 2.0)
Point = namedtuple("Point", "x y")
SIGNATURE = Signature(
    positional=(
        Input("a"),
        Container(
            "dict",
            (
                Container("namedtuple", (Input("b"), Constant(None)), ("x", "y"), "Point"),
                Container("list", (Constant(0.5), Constant("text"))),
            ),
            ("p", 7),
        ),
    ),
    keywords={"c": Container("record", (Input("c"),), ("value",), "Box"), "flag": Constant(True)},
    results=Container(
        "record",
        (
            Container("tuple", (Output(0), Output(1, is_number=True), Constant(float("nan")))),
            Container("mapping", (Output(0),), ("k",), "Named"),
            Container("namedtuple", (Output(2), Constant("s")), ("x", "y"), "Point"),
        ),
        ("pair", "named", "point"),
        "Found",
    ),
    written=(("a", 2),),
)
ARGS = (A, {"p": Point(B, None), 7: [0.5, "text"]})
KWARGS = {"flag": True, "c": {"value": C}}


def program() -> Program:
    names = [*"abc", "y0", "y1", "y2"]
    buffers = {n: Buffer(n, TensorType((symbol("n"),), f32), "input") for n in names}
    return Program("p", "cpu", {}, buffers, tuple("abc"), ("y0", "y1", "y2"), {}, (), 0, {})


@pytest.fixture(params=["as made", "read from JSON"])
def signature(request) -> Signature:
    if request.param == "as made":
        return SIGNATURE
    return signature_from_json(json.loads(json.dumps(signature_to_json(SIGNATURE))), program())


def test_arguments_become_inputs(signature):
    inputs = signature.flatten(ARGS, KWARGS)
    assert inputs == {"a": A, "b": B, "c": C}
    for box in (Record(value=C), SimpleNamespace(value=C)):
        assert signature.flatten(ARGS, {**KWARGS, "c": box})["c"] is C


def test_results_are_built(signature):
    found = signature.restore([A, np.array(5), B])
    assert type(found) is Record
    assert found.pair[0] is A
    assert (found["pair"][1], type(found.pair[1])) == (5, int)
    assert np.isnan(found.pair[2])
    assert found.named == {"k": A}
    assert type(found.point).__name__ == "Point"
    assert (found.point.x, found.point.y) == (B, "s")
    assert isinstance(found.point, tuple)
    with pytest.raises(AttributeError, match="no field 'other'; there are pair, named, point"):
        _ = found.other


OTHERS = {
    "1 arguments by position, it was 2": ((A,), KWARGS),
    "the keywords flag, it was c, flag": (ARGS, {"flag": True}),
    "args[0] is None, it was an array": ((None, ARGS[1]), KWARGS),
    "args[1] is a dict of 7, p": ((A, {7: [0.5, "text"], "p": Point(B, None)}), KWARGS),
    "args[1] is a OrderedDict": ((A, OrderedDict(ARGS[1])), KWARGS),
    "args[1]['p'] is a tuple of 2": ((A, {**ARGS[1], "p": (B, None)}), KWARGS),
    "args[1][7] is a list of 3": ((A, {**ARGS[1], 7: [0.5, "text", 1]}), KWARGS),
    "args[1][7] is a tuple of 2": ((A, {**ARGS[1], 7: (0.5, "text")}), KWARGS),
    "c is an array, it was Box(value: array)": (ARGS, {**KWARGS, "c": C}),
}
CHANGED = {
    "args[1]['p'].y: it was None, now it is an array": ((A, {**ARGS[1], "p": Point(B, C)}), KWARGS),
    "args[1][7][0]: it was 0.5, now it is -0.5": ((A, {**ARGS[1], 7: [-0.5, "text"]}), KWARGS),
    "flag: it was True, now it is 1": (ARGS, {**KWARGS, "flag": 1}),
}


@pytest.mark.parametrize("says", [*OTHERS, *CHANGED])
def test_other_arguments_are_told_with_their_place(signature, says):
    args, kwargs = {**OTHERS, **CHANGED}[says]
    with pytest.raises(ShapeError) as error:
        signature.flatten(args, kwargs)
    assert ("constant" in error.value.what) == (says in CHANGED)
    assert says in error.value.facts


def test_constants_are_the_same_when_they_compute_the_same():
    for then, now, fits in [
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        (1, 1.0, False),
        (1, True, False),
    ]:
        signature = Signature((Constant(then),), {}, Output(0))
        if fits:
            assert signature.flatten((now,), {}) == {}
        else:
            with pytest.raises(ShapeError, match="constant"):
                signature.flatten((now,), {})


def test_all_problems_are_told_at_once():
    signature = Signature((Input("a"), Input("b")), {}, Output(0))
    with pytest.raises(ShapeError, match=r"args\[0\] is None(.|\n)*args\[1\] is 'x'"):
        signature.flatten((None, "x"), {})


def test_what_plain_data_cannot_hold_is_refused_with_its_place():
    results = Container("dict", (Constant(1j), Constant(object)), ("a", "b"))
    signature = Signature((), {"k": Container("dict", (Input("a"),), (None,))}, results)
    with pytest.raises(UnsupportedModel) as error:
        signature_to_json(signature)
    assert error.value.facts.splitlines() == [
        "k has the key None",
        "the result['a'] is 1j, a complex",
        "the result['b'] is <class 'object'>, a type",
    ]


DAMAGE = [
    (("positional",), None),
    (("positional", 0), {"output": 0}),
    (("positional", 0), {"input": "b"}),
    (("positional", 0), {"input": "nowhere"}),
    (("positional", 0), {"constant": [1]}),
    (("positional", 1, "kind"), "set"),
    (("positional", 1, "keys"), ["p"]),
    (("positional", 1, "keys"), ["p", "p"]),
    (("positional", 1, "parts", 0, "name"), "__import__('os')"),
    (("positional", 1, "parts", 0, "keys"), ["x", "class"]),
    (("positional", 1, "parts", 0, "keys"), ["x", "_y"]),
    (("keywords",), {"not a name": {"input": "c"}}),
    (("results",), {"output": 3}),
    (("results",), {"output": -1}),
    (("results",), {"input": "a"}),
    (("results",), {}),
    (("written",), [["nowhere", 0]]),
    (("written",), [["a", 9]]),
    (("written",), [["a"]]),
]


@pytest.mark.parametrize(("path", "value"), DAMAGE, ids=[str(item) for item in DAMAGE])
def test_damaged_data_is_refused(path, value):
    data = copy.deepcopy(signature_to_json(SIGNATURE))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ArtifactError, match="the stored signature is damaged"):
        signature_from_json(data, program())


def test_parameters_survive():
    def forward(x, /, y=1, *rest, z, w=None, **more): ...

    kept = parameters_from_json(
        json.loads(json.dumps(parameters_to_json(inspect.signature(forward))))
    )
    assert str(kept) == "(x, /, y=..., *rest, z, w=..., **more)"
    bound = kept.bind(1, z=2, v=3)
    assert (bound.args, bound.kwargs) == ((1,), {"z": 2, "v": 3})
    with pytest.raises(TypeError, match="missing a required"):
        kept.bind(1)
    text, wrong = {"name": "a b", "kind": "KEYWORD_ONLY"}, {"name": "a", "kind": "empty"}
    for bad in ([text | {"is_optional": False}], [wrong | {"is_optional": False}], [3], 7):
        with pytest.raises((ValueError, TypeError)):
            parameters_from_json(bad)
