"""The table from ATen operations to ours, one module a family. Importing it fills the table."""

from . import (
    activation,
    attention,
    complex,
    contract,
    control,
    elementary,
    index,
    logic,
    norm,
    pad,
    pointwise,
    reduce,
    rnn,
    scan,
    scatter,
    sort,
    source,
    symbolic,
    view,
)
