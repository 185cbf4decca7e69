"""Schedules of attention: tiles, and how many programs share keys.

Searched for on an H200 (bf16, 32 heads of 128 over 8 KV heads, pages of 16). Decode reads the cache
of 32 sequences of 2,048 at 98% of the rate of a copy; fewer want a program a core, with more in
flight. Tiles of 64 rows are best for decodes beside prompts, and near the best for prompts.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from ...ir.dim import Dim, ceildiv, floordiv, maximum, minimum, product
from ...ir.facts import Facts
from ...ir.target import Target
from ...ir.types import f32
from ..elements import index_facts
from ..loops import LoopKernel, feed_dtype
from .template import STAGES, WARPS, Bucket, Schedule, clip, has_room, power_of_2, powers_of_2

# of one step of attention in float32: each is an instruction of its own, and twice as many take the
# compiler more than twice as long (2^17: 5 s, 2^19: 45 s)
PRODUCTS = 1 << 17
MOST = 1 << 12  # programs that share keys
# keys worth a program; keys whose reading is worth leaving a row's sums. What so many programs read
# takes one no longer than joining does.
LEAST, A_ROW, JOIN = 128, 8, 2
# added to the select value of attention for steps that are not pure decode
MANY = 1 << 30
LONG = 1024  # new tokens a sequence whose tiles are enough for all cores


@dataclass(frozen=True)
class AttentionSchedule(Schedule):
    """`queries` tokens of one sequence a program, `keys` keys a step.

    `programs` > 1: where tiles of queries are fewer, several programs share the keys of each, so
    that there are about as many in all.
    """

    domain: ClassVar = {
        "queries": powers_of_2(1, 128),
        "keys": powers_of_2(4, 256),
        "programs": range(1, MOST + 1),
        "num_warps": WARPS,
        "num_stages": STAGES,
    }

    queries: int
    keys: int
    programs: int = 1
    num_warps: int = 4
    num_stages: int = 2

    def least_keys(self, rows: int) -> int:
        """Keys that are worth a program, of a tile of so many rows."""
        return max(LEAST, A_ROW * rows, self.keys)

    def programs_a_tile(self, tiles: Dim, rows: int, keys: Dim) -> Dim:
        """How many share the keys of each tile, of which no sequence has more than `keys`."""
        each = floordiv(self.programs, maximum(tiles, 1))
        return maximum(minimum(each, ceildiv(keys, self.least_keys(rows))), 1)


def attention_table(kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
    """The template's `defaults`.

    Dense: by the number of queries. With pages: by the number of sequences in pure decode, a token
    a sequence; MANY and more, by tokens a sequence, in other steps.
    """
    (part,) = kernel.parts
    facts = index_facts(kernel, ())
    few, many, prompts, long, dense = _schedules(kernel, target)
    group = power_of_2(part.num_heads // part.num_kv_heads)
    alone = target.num_cores // part.num_kv_heads  # sequences of which each tile has a core
    if part.pages is None:
        queries, most = max(16 // group, 1), facts.bounds(product(part.batch))[1]
        first = replace(few if most is not None and most <= alone else many, queries=queries)
        first, long = (_alone(s, s.queries * group, part.keys, facts) for s in (first, long))
        return part.queries, clip(
            [(0, queries, first), (queries + 1, None, dense)], facts, part.queries
        )
    tokens, sequences = part.tokens, part.pages.sequences
    table = clip([(0, alone, few), (alone + 1, MANY - 1, many)], facts, sequences)
    if tokens == sequences:
        return sequences, table
    table += [
        (MANY, MANY + LONG - 1, prompts),
        (MANY + LONG, None, long),
    ]
    is_more = minimum(maximum(tokens - sequences, 0), 1)
    return sequences + is_more * (MANY + floordiv(tokens, sequences) - sequences), _joined(table)


def _alone(schedule: AttentionSchedule, rows: int, keys: Dim, facts: Facts) -> AttentionSchedule:
    """With one program a tile where there never are keys enough for two."""
    is_enough = not facts.proved_le(keys, schedule.least_keys(rows))
    return schedule if is_enough else replace(schedule, programs=1)


def _schedules(kernel: LoopKernel, target: Target) -> tuple[AttentionSchedule, ...]:
    """Of few sequences in decode, and of many; of prompts, and of long ones; of dense attention.

    128 rows in 8 warps hold their sums in registers, where 4 warps spill.
    """
    (part,) = kernel.parts
    size = max(part.head_dim, part.value_dim)
    q, k, v = (kernel.params[x.param].type.dtype for x in (part.q, part.k, part.v))
    is_f32 = f32 in (feed_dtype(q, k), feed_dtype(q, v))
    group = power_of_2(part.num_heads // part.num_kv_heads)
    cores, is_wide = target.num_cores, size > 128 or is_f32
    if has_room(target) and not is_wide:
        long = AttentionSchedule(max(64 // group, 1), 64, 1, 4, 3)
        return (
            AttentionSchedule(1, 128, cores, 4, 3),
            AttentionSchedule(1, 32, 4 * cores, 2, 4),
            replace(long, programs=8 * cores),
            long,
            AttentionSchedule(max(128 // group, 1), 64, 2 * cores, 8, 3),
        )
    keys, rows = 32 if is_wide else 64, 64
    if size > 256:  # queries, keys and values of a step share what memory a program has
        keys, rows = 16, 32
    width, tall = power_of_2(size), keys  # keys beside many rows
    if is_f32:
        keys, tall = max(min(keys, PRODUCTS // (max(group, 16) * width)), 16), 16
        rows = min(rows, PRODUCTS // (2 * tall * width))  # else registers spill
    stages, warps = 1, 4
    if has_room(target):
        small = 2 * keys * width * (4 if is_f32 else 2) <= target.shared_bytes // 6
        stages, warps = 3 if small else 2, 8
    few = warps if size > 256 or (is_f32 and size >= 128) else 4
    decode = AttentionSchedule(1, keys, 8 * cores, few, stages)
    prompts = AttentionSchedule(max(rows // group, 1), tall, 2 * cores, warps, min(stages, 2))
    return decode, decode, prompts, prompts, prompts


def _joined(table: list[Bucket]) -> list[Bucket]:
    """The table with one bucket for neighbours of one schedule."""
    found: list[Bucket] = []
    for lo, hi, schedule in table:
        if found and found[-1][2] == schedule:
            lo = found.pop()[0]
        found.append((lo, hi, schedule))
    return found
