"""The tables of ONNX operators, one module a family. Importing it fills them."""

from . import (
    attention,
    boxes,
    contract,
    contrib,
    contrib_attention,
    contrib_quantize,
    control,
    conv,
    elementwise,
    index,
    norm,
    quantize,
    reduce,
    rnn,
    sequence,
    signal,
    view,
)
