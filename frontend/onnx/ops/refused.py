"""Operators that are known and not imported, with what to do about it."""

from ..operators import refuses

_RANDOM = "it draws random numbers; draw them outside, and pass them as an input"
_TEXT = "it computes with strings; do it before the model, and pass numbers"
_TRAINS = "it is for training; export the model for inference"

refuses(
    _RANDOM,
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Bernoulli", "Multinomial"),
)
refuses(_TEXT, "StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch")
refuses("it decodes a picture's file; do it before the model, and pass pixels", "ImageDecoder")
for _domain in ("ai.onnx.training", "ai.onnx.preview.training"):
    refuses(_TRAINS, domain=_domain)
