"""The table from ATen operations to ours, one module a family. Importing it fills the table."""

from . import (  # noqa: F401
    activation,
    attention,
    contract,
    index,
    norm,
    pointwise,
    reduce,
    source,
    view,
)
