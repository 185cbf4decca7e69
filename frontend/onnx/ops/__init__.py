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
    conv_integer,
    elementwise,
    index,
    norm,
    quantize,
    recurrence,
    reduce,
    rnn,
    sequence,
    signal,
    view,
)
