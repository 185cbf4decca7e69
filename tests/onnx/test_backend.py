"""A sample of ONNX's own tests, through the backend class; `backend.py` runs all of them."""

import re

import pytest

from .backend import check, node_cases, reason, stored_cases
from .exclusions import EXCLUDED

# one of each kind of thing that the importer does: names are those of onnx.backend.test
SAMPLE = """
    basic_deform_conv_with_padding cast_FLOAT_to_BFLOAT16 cast_FLOAT_to_FLOAT8E5M2FNUZ
    convtranspose_group_2 einsum_batch_matmul if_seq loop11 max_uint32 nonzero_example
    quantizelinear_float4e2m1 quantizelinear_int4 reshape_negative_dim scatternd_add slice_neg_steps
""".split()
STORED = "test_(AvgPool2d_stride|Conv3d_dilated|PReLU_2d_multiparam|operator_pow|sequence_model3)"


def test_a_sample_of_the_node_tests():
    # built a module at a time, and run under the names that they have there
    cases = {case.name: case for case in node_cases("|".join(f"^test_{n}$" for n in SAMPLE))}
    assert len(cases) > len(SAMPLE) * 0.8, set(SAMPLE) - {n.removeprefix("test_") for n in cases}
    for case in cases.values():
        check(case)


def test_a_sample_of_the_stored_tests():
    cases = list(stored_cases(f"^{STORED}$"))
    assert len(cases) == 5
    for case in cases:
        check(case)


@pytest.mark.parametrize("pattern", EXCLUDED)
def test_each_exclusion_has_a_reason(pattern):
    assert len(EXCLUDED[pattern]) > 20
    assert re.compile(pattern)
    assert reason("test_add") is None
