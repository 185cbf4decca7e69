"""Every op of the IR, declared once, in families. Importing this package declares them all."""

from . import (
    attention,
    composite,
    contract,
    control,
    conv,
    elementwise,
    index,
    reduce,
    sampling,
    scatter,
    sort,
    source,
    view,
)
