"""Operators of ai.onnx.ml: calls of ONNX's reference, counted and refused as such."""

import numpy as np
import pytest
from onnx import TensorProto

import tilewright
from tilewright.ir.errors import UnsupportedOp

from ..onnx.graphs import model
from .onnx_single import reference

F, I64 = TensorProto.FLOAT, TensorProto.INT64
ML = {"domain": "ai.onnx.ml"}
RNG = np.random.default_rng(6)

TREES = {
    "n_targets": 2,
    "nodes_treeids": [0] * 3 + [1],
    "nodes_nodeids": [0, 1, 2, 0],
    "nodes_featureids": [1, 0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "LEAF"],
    "nodes_values": [0.25, 0.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 0],
    "nodes_hitrates": [1.0] * 4,
    "nodes_missing_value_tracks_true": [0] * 4,
    "target_treeids": [0, 0, 1],
    "target_nodeids": [1, 2, 0],
    "target_ids": [0, 1, 1],
    "target_weights": [1.5, -2.0, 0.5],
}
LINEAR = {
    "coefficients": [0.5, -1.0, 2.0, 1.0, 0.0, -0.5],
    "intercepts": [0.1, -0.2],
    "classlabels_ints": [4, 9],
    "post_transform": "SOFTMAX",
}
NODES = [
    ("Scaler", ["x"], ["s"], {"offset": [1.0, 0.0, -1.0], "scale": [2.0, 1.0, 0.5], **ML}),
    ("LinearClassifier", ["s"], ["label", "score"], {**LINEAR, **ML}),
    ("TreeEnsembleRegressor", ["s"], ["target"], {**TREES, **ML}),
    ("Add", ["score", "target"], ["sum"]),
]


def pipeline(nodes=NODES, outputs=(("label", I64), ("score", F), ("sum", F))):
    proto = model(nodes, [("x", F, ["n", 3])], outputs, domains=["ai.onnx.ml"])
    proto.opset_import[1].version = 3
    return proto


def test_models_of_tables_are_calls_of_the_reference():
    proto = pipeline()
    compiled = tilewright.compile(proto, target="cpu")
    assert compiled.fallback_ops == 3
    for rows in (1, 5, 2):
        x = RNG.normal(size=(rows, 3)).astype(np.float32)
        for got, want in zip(compiled(x), reference(proto, {"x": x}), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5)
    assert len(compiled.variants) == 1


def test_what_is_no_kernel_is_refused_when_asked():
    with pytest.raises(UnsupportedOp, match=r"1 unsupported(.|\n)*Scaler(.|\n)*strict=True"):
        tilewright.compile(pipeline(), target="cpu", strict=True)


def test_maps_and_text_are_refused_with_what_to_do():
    nodes = [*NODES, ("ZipMap", ["score"], ["map"], {"classlabels_int64s": [4, 9], **ML})]
    nodes.append(("Multinomial", ["map"], ["z"]))  # what reads a result that is missing is told too
    told = r"2 unsupported(.|\n)*Multinomial(.|\n)*random numbers(.|\n)*ZipMap(.|\n)*zipmap=False"
    with pytest.raises(UnsupportedOp, match=told):
        tilewright.import_onnx(pipeline(nodes))
    labels = {"classlabels_ints": None, "classlabels_strings": ["a", "b"]}
    named = {k: v for k, v in {**LINEAR, **labels, **ML}.items() if v is not None}
    nodes = [("LinearClassifier", ["x"], ["label", "score"], named)]
    with pytest.raises(UnsupportedOp, match=r"LinearClassifier(.|\n)*it gives no numbers"):
        tilewright.import_onnx(pipeline(nodes, [("score", F)]))


def test_attributes_that_do_not_fit_are_told_in_the_words_of_the_reference():
    nodes = [("Scaler", ["x"], ["y"], {"offset": [1.0] * 7, "scale": [1.0], **ML})]
    with pytest.raises(UnsupportedOp, match="ONNX's reference does not compute it"):
        tilewright.import_onnx(pipeline(nodes, [("y", F)]))
