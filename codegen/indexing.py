"""Index arithmetic, from where views are declared."""

from ..ir.indexing import (  # noqa: F401
    coefficient_of,
    delinearize,
    divmod_dim,
    linearize,
    recombine,
    strides_of,
)
