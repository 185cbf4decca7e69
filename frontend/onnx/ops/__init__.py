"""The tables of ONNX operators, one module a family. Importing it fills them."""

from . import (
    attention,
    boxes,
    contract,
    control,
    elementwise,
    index,
    reduce,
    rnn,
    sequence,
    signal,
)
