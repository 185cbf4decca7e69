"""Paged attention and sampling."""

import numpy as np
import pytest

from tilewright.codegen.loops import LoopKernel, Param, Sample
from tilewright.codegen.templates.attention import Attention, Located, Pages
from tilewright.ir.dim import symbol
from tilewright.ir.types import TensorType, bf16, f16, f32, i32, i64

from ..triton import samples
from .harness import Library

T, B, WIDTH, PAGES = (symbol(s) for s in ("t", "seqs", "width", "pages"))


def attention(H, G, D, W, dtype=f32, q_dtype=f32, **options) -> LoopKernel:
    Dv = options.get("Dv", D)
    params = (
        Param(TensorType((T, H, D), q_dtype), False),
        Param(TensorType((PAGES, G, W, D), dtype), False),
        Param(TensorType((PAGES, G, W, Dv), options.get("v_dtype", dtype)), False),
        Param(TensorType((B, WIDTH), i32), False),
        Param(TensorType((B + 1,), i32), False),
        Param(TensorType((B,), i32), False),
        Param(TensorType((T, H, Dv), q_dtype), True),
    )
    k, v = (Located(n, 0, (G * W * size, W * size, size)) for n, size in ((1, D), (2, Dv)))
    part = Attention(
        Located(0, 0, (D, H * D)), k, v, Located(6, 0, (Dv, H * Dv)), None,
        Pages(3, 4, 5, B, WIDTH, W), (), T, 0, H, G, D, Dv, D**-0.5, True,
        options.get("window"), options.get("softcap"),
    )  # fmt: skip
    return LoopKernel(params, (part,), ("seqs", "t", "width"), "attention")


KERNELS = {
    "plain": attention(6, 2, 64, 16),
    "one_head": attention(1, 1, 32, 4),
    "odd": attention(6, 3, 20, 3),
    "large_head": attention(2, 1, 300, 8),
    "bf16": attention(6, 2, 64, 16, bf16),
    "f16": attention(4, 4, 24, 8, f16),
    "all_bf16": attention(4, 2, 32, 8, bf16, bf16),
    "window": attention(6, 2, 64, 16, window=70),
    "softcap": attention(6, 2, 64, 16, softcap=5.0),
    "wide_keys": attention(6, 2, 72, 4, bf16, Dv=40, v_dtype=f32),
    "wide_values": attention(2, 1, 12, 4, f16, Dv=70, window=9),
    "both": attention(4, 1, 16, 5, window=3, softcap=2.0),
}
BATCHES = {
    "decode": ([1], [1]), "decode_long": ([1], [777]), "prefill": ([65], [65]),
    "chunk": ([40], [700]), "mixed": ([1, 33, 0, 1, 5], [300, 33, 9, 1, 600]),
    "exact": ([256, 1], [256, 512]),
}  # fmt: skip


@pytest.fixture(scope="module")
def library():
    dense = {f"dense_{n}": samples.dense_attention(**g).kernel for n, g in samples.DENSE.items()}
    return Library({**KERNELS, **dense, "sample": sampler(301)})


def make_batch(rng, kernel, lengths, contexts, padding=3, scale=1.0):
    (part,) = kernel.parts
    W, G, D, Dv = part.pages.size, part.num_kv_heads, part.head_dim, part.value_dim
    width = -(-max(contexts) // W) + 1
    counts = [-(-c // W) for c in contexts]
    ids = rng.permutation(sum(counts) + 2).astype(np.int32)
    table = np.full((len(contexts), width), ids[-1], np.int32)
    at = 0
    for row, count in zip(table, counts, strict=True):
        row[:count] = ids[at : at + count]
        at += count
    k, v = (
        (rng.standard_normal((len(ids), G, W, size)) * scale).astype(
            kernel.params[number].type.dtype.numpy
        )
        for number, size in ((1, D), (2, Dv))
    )
    tokens = sum(lengths) + padding
    q = (rng.standard_normal((tokens, part.num_heads, D)) * scale).astype(
        kernel.params[0].type.dtype.numpy
    )
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    return [q, k, v, table, starts, np.array(contexts, np.int32)]


def sizes_of(arrays):
    return {
        "t": len(arrays[0]),
        "seqs": len(arrays[5]),
        "width": arrays[3].shape[1],
        "pages": len(arrays[1]),
    }


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", KERNELS)
def test_against_the_reference(library, rng, name, batch):
    # a score of some hundreds carries an error of 1e-4 into the exponential: the third scale
    for scale, tolerance in ((1.0, 2e-5), (1e-3, 2e-5), (6.0, 1e-3)):
        arrays = make_batch(rng, KERNELS[name], *BATCHES[batch], scale=scale)
        tolerance = 8e-3 if name == "all_bf16" else tolerance
        library.check(name, arrays, sizes_of(arrays), rtol=tolerance, atol=tolerance * scale)


def test_padding_rows_are_zero(library, rng):
    arrays = make_batch(rng, KERNELS["plain"], [3], [9], padding=5)
    (out,) = library.check("plain", arrays, sizes_of(arrays))
    assert not out[3:].any()


@pytest.mark.parametrize("name", ["plain", "bf16", "window", "both", "odd"])
def test_a_token_has_the_same_bits_in_prefill_decode_and_any_batch(library, rng, name):
    kernel = KERNELS[name]
    length = 530
    q, k, v, table, _, _ = make_batch(rng, kernel, [length], [length], padding=0)
    sizes = {"seqs": 1, "width": table.shape[1], "pages": len(k)}

    def run(q, starts, contexts, table, threads):
        out = np.zeros_like(q)
        arrays = [q, k, v, table, np.array(starts, np.int32), np.array(contexts, np.int32), out]
        dims = sizes | {"t": len(q), "seqs": len(contexts)}
        library.run(name, arrays, dims, threads)
        return out

    whole = run(q, [0, length], [length], table, 2)
    chunk = run(q[200:400], [0, 200], [400], table, 1)
    assert whole[200:400].tobytes() == chunk.tobytes()
    for position in (0, 5, 255, 256, 300, 529):
        one = run(q[position : position + 1].copy(), [0, 1], [position + 1], table, 2)
        assert whole[position].tobytes() == one[0].tobytes()
    several = run(q[[10, 529, 300]], [0, 1, 2, 3], [11, 530, 301], np.repeat(table, 3, 0), 3)
    assert whole[[10, 529, 300]].tobytes() == several.tobytes()


def test_what_a_token_must_not_see_does_not_matter(library, rng):
    q, k, v, table, starts, lens = make_batch(rng, KERNELS["plain"], [4], [20])
    sizes = sizes_of([q, k, v, table, starts, lens])
    results = []
    for filler in (0.0, np.nan):
        k[table[0, 1], :, 4:] = v[table[0, 1], :, 4:] = filler  # tokens 20.. of the last page
        out = np.zeros_like(q)
        library.run("plain", [q, k, v, table, starts, lens, out], sizes)
        results.append(out)
    assert results[0].tobytes() == results[1].tobytes()


def test_a_nan_query_spoils_only_itself(library, rng):
    arrays = make_batch(rng, KERNELS["plain"], [4], [20], padding=0)
    arrays[0][2, 1] = np.nan
    out = np.zeros_like(arrays[0])
    library.run("plain", [*arrays, out], sizes_of(arrays))
    assert np.isnan(out[2, 1]).all()
    assert np.isfinite(np.delete(out.reshape(24, -1), 13, 0)).all()


# ---- dense ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", samples.DENSE)
def test_dense_against_the_reference(library, name):
    for size in [*samples.DENSE_SIZES, (300, 280), (3, 900)]:
        case = samples.dense_attention(*size, **samples.DENSE[name])
        read = [a for a, p in zip(case.arrays, case.kernel.params) if not p.is_written]
        tolerance = {"bf16": 8e-3, "wide_bf16": 8e-3, "f16": 1e-3}.get(name, 2e-5)
        library.check(f"dense_{name}", read, case.sizes, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["causal", "wide_bf16"])
def test_a_dense_query_has_the_same_bits_with_others_and_alone(library, name):
    length = 530
    case = samples.dense_attention(length, length, **samples.DENSE[name])
    q, k, v, out = case.arrays
    library.run(f"dense_{name}", [q, k, v, out], case.sizes)
    for first, last in ((0, 1), (255, 258), (500, 530)):
        keys = [x[:, :last].copy() for x in (k, v)]
        some = np.zeros_like(out[:, first:last])
        sizes = {"s": last - first, "t": last}
        library.run(f"dense_{name}", [q[:, first:last].copy(), *keys, some], sizes)
        assert out[:, first:last].tobytes() == some.tobytes()


# ---- sampling ------------------------------------------------------------------------------------


def sampler(vocab) -> LoopKernel:
    R = symbol("r")
    dtypes = (f32, i32, f32, i64, i64)
    params = (Param(TensorType((R, vocab), f32), False),)
    params += tuple(Param(TensorType((R,), d), False) for d in dtypes)
    params += (Param(TensorType((R,), i32), True),)
    part = Sample(0, 1, 2, 3, 4, 5, 6, R, vocab)
    return LoopKernel(params, (part,), ("r",), "sample")


def test_sampling_chooses_what_the_reference_chooses(library, rng):
    rows = 200
    logits = rng.standard_normal((rows, 301)).astype(np.float32) * 3
    logits[::7] = np.round(logits[::7])  # ties
    arrays = [
        logits,
        rng.choice([0.0, 1e-45, 2e-39, 7e-37, 0.3, 1.0, 2.0], rows).astype(np.float32),
        rng.choice([0, 1, 5, 300, 400], rows).astype(np.int32),
        rng.choice([0.0, 0.1, 0.7, 0.95, 1.0], rows).astype(np.float32),
        rng.integers(-(2**63), 2**63 - 1, rows, np.int64),
        rng.integers(0, 5000, rows).astype(np.int64),
    ]
    (out,) = library.check("sample", arrays, {"r": rows}, exact=True)
    assert len(set(out.tolist())) > 50
    again = np.zeros(1, np.int32)
    library.run("sample", [*(a[9:10].copy() for a in arrays), again], {"r": 1})
    assert again[0] == out[9]


def test_a_row_without_a_likeliest_token_gives_none(library):
    logits = np.full((4, 301), -np.inf, np.float32)
    logits[1:, 7] = 1
    logits[2, 9] = np.nan
    logits[3, 300] = np.inf
    for temperature in (0.0, 1.0):
        arrays = [
            logits, np.full(4, temperature, np.float32), np.zeros(4, np.int32),
            np.ones(4, np.float32), np.zeros(4, np.int64), np.zeros(4, np.int64),
        ]  # fmt: skip
        (out,) = library.check("sample", arrays, {"r": 4}, exact=True)
        assert out.tolist() == [-1, 7, -1, -1]


def test_lowered_groups(library):
    case = samples.attention([5, 1, 300], [7, 900, 310], window=40, softcap=5.0)
    Library({"lowered": case.kernel}).check_case("lowered", case)
