"""The tables of ONNX operators, one module a family. Importing it fills them."""

from . import contract, elementwise
