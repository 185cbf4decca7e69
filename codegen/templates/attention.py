"""Attention over the paged KV cache: a template of its own, filled with sizes and strides."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.dim import Dim, minimum, symbol
from ...ir.errors import UnsupportedOp
from ...ir.graph import Node, Value
from ...ir.indexing import coefficient_of
from ...ir.target import Target
from ...ir.types import bf16, f16, f32
from ..elements import index_facts
from ..inline import Inliner
from ..loops import LoopKernel, PagedAttention, feed_dtype
from .template import (
    STAGES,
    WARPS,
    Bucket,
    Schedule,
    Template,
    clip,
    power_of_2,
    powers_of_2,
)

ROOMY = 128 * 1024  # bytes of shared memory that hold several stages of keys and values
# of one step of attention in float32: each is an instruction of its own, and twice as many take the
# compiler more than twice as long (2^17: 5 s, 2^19: 45 s)
PRODUCTS = 1 << 17
SPLITS, PROGRAMS = (32, 8, 4), 1000  # of one token's keys; programs in all that are worth it
MANY = 1 << 30  # added to the select value of attention for steps that are not pure decode


@dataclass(frozen=True)
class AttentionSchedule(Schedule):
    """`queries` tokens of one sequence a program, `keys` keys a step.

    `splits` > 1: programs that share the keys of a token, joined by a second launch.
    """

    domain: ClassVar = {
        "queries": powers_of_2(1, 64),
        "keys": powers_of_2(4, 256),
        "splits": range(1, 65),
        "num_warps": WARPS,
        "num_stages": STAGES,
    }

    queries: int
    keys: int
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 2


class AttentionTemplate(Template):
    """One node: the query may be a strided view, everything else is read as it lies."""

    name = "attention"
    kinds = frozenset(("attention",))
    parts = (PagedAttention,)

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[PagedAttention]:
        node = next(n for n in nodes if n.op.kind == "attention")
        if node.op.name != "paged_attention":
            raise UnsupportedOp(
                f"no kernel for {node.op.name}", where=node.loc or "", fix="decompose it first"
            )
        q, k, v, page_table, query_starts, context_lens = node.operands
        if not {q.dtype, k.dtype, v.dtype} <= {f32, bf16, f16}:
            raise UnsupportedOp(
                f"no kernel for paged_attention of {q.dtype} over keys of {k.dtype} and values of"
                f" {v.dtype}",
                where=node.loc or "",
                facts="the kernels compute in f32 what is stored in f32, bf16 or f16",
                fix="cast the queries, and keep keys and values in one of those dtypes",
            )
        token, head, at = (inliner.axis(n, d) for n, d in zip(("_i0", "_i1", "_i2"), q.shape))
        load = inliner.element(q, (token, head, at))
        names = ("_i0", "_i1", "_i2")
        strides = [coefficient_of(load.offset, n) for n in names] if hasattr(load, "offset") else []
        if len(strides) != 3 or None in strides or strides[2] != 1:
            raise UnsupportedOp(
                "the query of paged_attention is not a strided view of one buffer",
                where=node.loc or "",
                fix="partition what computes it into a group of its own",
            )
        base = load.offset
        for n, stride in zip(names, strides):
            base = base - symbol(n) * stride
        (output,) = outputs
        part = PagedAttention(
            q=load.param,
            k=inliner.param(k),
            v=inliner.param(v),
            page_table=inliner.param(page_table),
            query_starts=inliner.param(query_starts),
            context_lens=inliner.param(context_lens),
            out=inliner.param(output, is_written=True),
            tokens=q.shape[0],
            sequences=page_table.shape[0],
            table_width=page_table.shape[1],
            num_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            head_dim=q.shape[2],
            value_dim=v.shape[3],
            page_size=k.shape[2],
            q_offset=base,
            q_token_stride=strides[0],
            q_head_stride=strides[1],
            **node.attrs,
        )
        return (part,)

    def points(self, part: PagedAttention) -> Dim:
        return part.tokens * part.num_heads * part.value_dim

    def operations(self, part: PagedAttention) -> Dim:
        """They depend on the lengths of the sequences: not counted."""
        return 0

    def unsized(self, part: PagedAttention) -> frozenset[int]:
        """The pools: what is read of them depends on the lengths of the sequences."""
        return frozenset((part.k, part.v))

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        """By the number of sequences in pure decode (a token a sequence), above MANY otherwise."""
        (part,) = kernel.parts
        facts = index_facts(kernel, ())
        size = max(part.head_dim, part.value_dim)
        width = power_of_2(size)
        q, k, v = (kernel.params[p].type.dtype for p in (part.q, part.k, part.v))
        is_f32 = f32 in (feed_dtype(q, k), feed_dtype(q, v))
        wide = size > 128 or is_f32
        group = power_of_2(part.num_heads // part.num_kv_heads)
        roomy = target.shared_bytes >= ROOMY
        stages = 2 if roomy else 1
        keys, rows = 32 if wide else 64, 64
        if is_f32:
            keys = max(min(keys, PRODUCTS // (max(group, 16) * width)), 16)
            rows = min(rows, PRODUCTS // (keys * width))
        queries = max(rows // group, 1)
        table: list[Bucket] = []
        after = 0
        for splits in SPLITS:
            # the most sequences for which this many splits still leave programs to share out
            hi = PROGRAMS // (part.num_kv_heads * splits)
            if hi > after:
                table.append((after, hi, AttentionSchedule(1, keys, splits, 4, stages)))
                after = hi + 1
        last = AttentionSchedule(1, keys, 1, 4, stages)
        if roomy and not wide:
            last = AttentionSchedule(1, 128, 1, 4, 3)
        table.append((after, MANY - 1, last))
        prefill = AttentionSchedule(queries, keys, 1, 4, stages)
        select = minimum(part.tokens - part.sequences, 1) * MANY + part.sequences
        table = clip(table, facts, part.sequences)
        if part.tokens == part.sequences:
            return part.sequences, table
        return select, [*table, (MANY, None, prefill)]
