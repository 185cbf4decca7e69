"""Walks the registry of ops and lists what is missing, so that nothing is forgotten in silence."""

import inspect

from tilewright.ir.op import KINDS, OPS
from tilewright.ir.scalar import parse_scalar

from .samples import SAMPLES


def test_every_op_has_samples():
    sampled = {s.op for s in SAMPLES}
    assert set(OPS) - sampled == set()
    assert sampled - set(OPS) == set()


def test_every_op_can_be_run_by_the_reference():
    missing = [
        name
        for name, op in OPS.items()
        if not (op.scalar or op.reference or op.combine or op.contraction or op.decomposition)
    ]
    assert missing == []


def test_every_op_is_documented_and_of_a_known_kind():
    for name, op in OPS.items():
        assert op.doc, name
        assert op.kind in KINDS, name
        has_errors = name == "check_index"  # which the scalar language has no words for
        assert (op.kind == "elementwise") == (op.scalar is not None or has_errors), name


def test_every_composite_can_be_taken_apart():
    assert [n for n, op in OPS.items() if op.kind == "composite" and not op.decomposition] == []


def test_every_attribute_says_its_type():
    for name, op in OPS.items():
        for attr, (annotation, _) in op.attrs.items():
            assert annotation is not inspect.Parameter.empty, f"{name}: {attr}"


def test_every_scalar_is_in_the_language():
    for op in OPS.values():
        if op.scalar is not None:
            parse_scalar(op.scalar, op.operands, tuple(op.attrs))


def test_samples_have_distinct_names():
    names = [s.id for s in SAMPLES]
    assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]
