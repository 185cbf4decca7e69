"""The memory plan: how many pages and sequences fit, and what is said when too few do."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.dim import Symbol, symbol
from tilewright.ir.errors import OptionError, OutOfMemory
from tilewright.ir.layout import KVLayout, LayerKV, Pool
from tilewright.ir.lazy_arrays import LazyArray, LazyArrays
from tilewright.ir.program import Buffer, Program
from tilewright.ir.types import TensorType, bf16, f32
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.engine.memory import plan_memory

T, PAGES = symbol("t"), symbol("pages")
PAGE_BYTES = 2 * 2 * 16 * 64 * 4


def serving_program(**limits) -> Program:
    symbols = {n: Symbol(n, 1, limits.get(n)) for n in ("t", "seqs", "width", "rows", "pages")}
    pools = Pool("k_0", 2, 64, f32), Pool("v_0", 2, 64, f32)
    states = {p.state: Buffer(p.state, p.type(PAGES, 16), "state") for p in pools}
    return Program(
        "lm", "cpu", symbols, states, (), (), {}, (), 1000 * T, {},
        KVLayout(16, (LayerKV(*pools),)),
    )  # fmt: skip


class Small(CpuDevice):
    """A CPU with little memory."""

    def __init__(self, nbytes):
        super().__init__()
        self.nbytes = nbytes

    def free_bytes(self):
        return self.nbytes


def plan(nbytes, *, program=None, weights=None, device=None, context_len=160, **options):
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 100} | options
    program, device = program or serving_program(), device or Small(nbytes)
    return plan_memory(program, weights or {}, device, context_len=context_len, **options)


def test_pages_by_formula():
    generous = plan(1 << 30)
    assert generous.num_pages == 4 * 10, "as many as four sequences of 160 tokens need"
    assert generous.arena_bytes == 100_000
    assert generous.page_bytes == PAGE_BYTES
    tight = plan(2 * (100_000 + 15 * PAGE_BYTES) + 1000)
    assert tight.num_pages == 15, "half of what is free, less the arena"
    assert tight.context_len == 160
    assert plan(2 * (100_000 + 3 * PAGE_BYTES)).context_len == 48, "within the pool"
    asked = plan(1 << 30, kv_bytes=7 * PAGE_BYTES + 5)
    assert asked.num_pages == 7
    assert "KV pool 0 MiB (7 pages)" in str(asked)


def test_limits_that_nobody_states_are_what_memory_allows():
    """The temporary buffers of this program are 1,000 bytes a token."""
    gpu = Small(0)
    gpu.kind = "cuda"
    for nbytes, expected in (
        (1 << 30, (512, 2048)),
        (8 * 1_024_000 + 200_000, (128, 1024)),
        (8 * 512_000 + 200_000, (64, 512)),
        (2_000_000, (64, 512)),  # the least, whatever its share
    ):
        gpu.nbytes = nbytes
        made = plan(0, device=gpu, max_num_seqs=None, max_num_batched_tokens=None)
        assert (made.max_num_seqs, made.max_num_batched_tokens) == expected
    gpu.nbytes = 1 << 30
    made = plan(0, device=gpu, max_num_seqs=3, max_num_batched_tokens=None)
    assert (made.max_num_seqs, made.max_num_batched_tokens) == (3, 2048)
    assert made.num_pages == 3 * 10
    made = plan(0, device=gpu, max_num_seqs=None, max_num_batched_tokens=300)
    assert (made.max_num_seqs, made.max_num_batched_tokens) == (512, 512)
    assert made.num_pages == 64 * 10, "more are served, and not all of full length"
    made = plan(1 << 30, max_num_seqs=None, max_num_batched_tokens=None)
    assert (made.max_num_seqs, made.max_num_batched_tokens) == (64, 512)


def computed():
    raise AssertionError("computed to know its size, which planning must not do")


def test_weights_are_counted_without_computing_them():
    program = serving_program()
    weight = Buffer("w", TensorType((300, 100), bf16), "weight")
    program = replace(program, buffers={**program.buffers, "w": weight})
    packed = LazyArrays({"w": LazyArray((320, 100), bf16, computed)})  # padded to whole tiles
    made = plan(1 << 30, program=program, weights=packed)
    assert made.weight_bytes == 2 * 320 * 100
    lying = {"w": np.zeros((320, 100), bf16.numpy)}
    assert plan(1 << 30, program=program, weights=lying).weight_bytes == 0, "used where they lie"
    gpu = Small(1 << 30)
    gpu.kind = "cuda"
    assert plan(0, program=program, weights=lying, device=gpu).weight_bytes == 2 * 320 * 100


def test_limits_of_the_program():
    program = serving_program(t=50, seqs=3, width=5, pages=11)
    made = plan(1 << 30, program=program)
    assert (made.max_num_batched_tokens, made.max_num_seqs) == (50, 3)
    assert (made.context_len, made.num_pages) == (80, 11)
    with pytest.raises(OptionError, match="a context of 160 tokens is more than the program"):
        plan(1 << 30, program=program, needs_context=True)


def test_too_little_memory_says_how_much():
    with pytest.raises(OutOfMemory) as caught:
        plan(150_000)
    assert str(caught.value) == (
        "the model does not fit into memory\n"
        "  at cpu\n"
        "  needed: 116,384 bytes (100,000 for weights and temporary buffers, 16,384 for keys and"
        " values); available: 75,000 of 150,000 free bytes\n"
        "  use a shorter context, a smaller KV pool, fewer tokens a step"
    )
    with pytest.raises(OutOfMemory, match="for 10 pages of 16 tokens; available: the 16,384 bytes"):
        plan(1 << 30, kv_bytes=PAGE_BYTES, needs_context=True)
    with pytest.raises(OutOfMemory, match="does not fit into memory"):
        plan(1 << 20, kv_bytes=1 << 30)
