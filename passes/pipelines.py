"""The pipelines, as literal lists."""

from collections.abc import Callable

from .canonicalize import Canonicalize
from .common_subexpressions import CommonSubexpressions
from .dead_code import DeadCode
from .fold_constants import FoldConstants
from .fuse_gated_mlp import FuseGatedMlp
from .fuse_layer_norm import FuseLayerNorm
from .fuse_rms_norm import FuseRmsNorm
from .fuse_rope import FuseRope
from .fuse_softmax import FuseSoftmax
from .manager import Pass
from .merge_projections import MergeProjections


def simplify() -> tuple[Pass, ...]:
    """Fewer nodes, nothing recognized."""
    return (FoldConstants(), Canonicalize(), CommonSubexpressions(), DeadCode())


def recognize() -> tuple[Pass, ...]:
    """Composite ops in place of what captured code writes out."""
    return (
        FoldConstants(),
        Canonicalize(),
        CommonSubexpressions(),  # patterns compare values by identity
        DeadCode(),
        FuseRmsNorm(),
        FuseLayerNorm(),
        FuseSoftmax(),
        FuseRope(),
        FuseGatedMlp(),  # before merging: gate and up belong together, not with q, k and v
        MergeProjections(),
        Canonicalize(),
        CommonSubexpressions(),
        DeadCode(),
    )


PIPELINES: dict[str, Callable[..., tuple[Pass, ...]]] = {
    "simplify": simplify,
    "recognize": recognize,
}
