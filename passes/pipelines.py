"""The pipelines, as literal lists."""

from collections.abc import Callable

from ..ir.types import DType
from .canonicalize import Canonicalize
from .carry_key_biases import CarryKeyBiases
from .channels_last import ChannelsLast
from .common_subexpressions import CommonSubexpressions
from .dead_code import DeadCode
from .decompose import Decompose
from .fold_batch_norm import FoldBatchNorm
from .fold_constants import FoldConstants
from .fuse_attention import FuseAttention
from .fuse_gated_mlp import FuseGatedMlp
from .fuse_layer_norm import FuseLayerNorm
from .fuse_rms_norm import FuseRmsNorm
from .fuse_rope import FuseRope
from .fuse_softmax import FuseSoftmax
from .group_experts import GroupExperts
from .hoist_transposes import HoistTransposes
from .lengths_of_tokens import LengthsOfTokens
from .lift_weights import LiftWeights
from .manager import Pass
from .merge_projections import MergeProjections
from .narrow_logits import NarrowLogits
from .page_kv import PageKv
from .sample_tokens import SampleTokens
from .scale_sums import ScaleSums
from .split_prepare import SplitPrepare
from .stack_weights import StackWeights
from .store_weights import StoreWeights
from .take_chosen_tokens import TakeChosenTokens
from .turn_weights import TurnWeights


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
        ScaleSums(),
        TurnWeights(),  # before what reads how weights lie
        GroupExperts(),
        FuseLayerNorm(),  # before rms-norm, which would take x - mean(x) for its x
        FuseRmsNorm(),
        FuseSoftmax(),  # before attention, which is read from its softmax outwards
        FuseAttention(),
        FuseRope(),
        FuseGatedMlp(),  # before merging: gate and up belong together, not with q, k and v
        MergeProjections(),
        Canonicalize(),
        CommonSubexpressions(),
        DeadCode(),
    )


def lower(weight_dtype: DType | None = None, stacks: bool = False) -> tuple[Pass, ...]:
    """From recognized ops to what kernels are made of: the end of every pipeline.

    `stacks`: for a device that copies tiles of two weights by one instruction.
    """
    return (
        *((StoreWeights(weight_dtype),) if weight_dtype is not None else ()),
        Decompose(),
        FoldConstants(),
        Canonicalize(),
        CommonSubexpressions(),
        DeadCode(),
        *((StackWeights(),) if stacks else ()),  # which simplifying would take apart
        LiftWeights(),  # once sub-graphs are what they will be
        SplitPrepare(),
    )


def dense(weight_dtype: DType | None = None, stacks: bool = False) -> tuple[Pass, ...]:
    """A module as it is: `tilewright.compile`."""
    return (
        *recognize(),
        FoldBatchNorm(),
        ChannelsLast(),  # once convolutions have what they will be
        *lower(weight_dtype, stacks),
    )


def language_model(
    weight_dtype: DType | None = None,
    *,
    page_size: int = 16,
    kv_dtype: DType | None = None,
    max_tokens: int | None = None,
    max_seqs: int | None = None,
    samples: bool = True,
    stacks: bool = False,
) -> tuple[Pass, ...]:
    """A causal language model over a paged cache: `tilewright.LLM`."""
    return (
        *recognize(),
        LengthsOfTokens(),
        CarryKeyBiases(),  # before paging: keys get one element more
        PageKv(page_size, kv_dtype, max_tokens, max_seqs),
        NarrowLogits(argmax=not samples),  # after paging: rows of tokens mean something only then
        *((SampleTokens(), TakeChosenTokens()) if samples else ()),
        CommonSubexpressions(),  # one transpose for all layers of attention that read one q
        HoistTransposes(),  # while rope is one op
        *lower(weight_dtype, stacks),
    )


PIPELINES: dict[str, Callable[..., tuple[Pass, ...]]] = {
    "simplify": simplify,
    "recognize": recognize,
    "lower": lower,
    "dense": dense,
    "language-model": language_model,
}
