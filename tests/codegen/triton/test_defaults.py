"""Every default schedule, run on the GPU with a size of its bucket: those of other GPUs too."""

import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.attention_schedules import MANY
from tilewright.ir.target import TARGETS
from tilewright.ir.types import bf16, bool_, f16, f32, f64, i8, i64

from . import samples
from .contractions import product
from .harness import check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")
pytestmark = pytest.mark.gpu

# whose tables differ: with and without room for many stages in shared memory
TABLES = [TARGETS["sm_90"], TARGETS["gfx942"]]


def linear(prologue, dtype, n, k, **more):
    return lambda m: product(prologue, None, m, n, k, dtype, most=4096, **more)


# name -> a case of a number of rows; a product of few rows of w is split along k
CONTRACTIONS = {
    "norm": linear("norm", bf16, 192, 2048),
    "wide": linear("plain", bf16, 5200, 200),
    "rounded": linear("rounded", bf16, 320, 384),
    "float16": linear("activation", f16, 192, 2048),
    "gated": lambda m: samples.gated(m, 320, 384, bf16, most=4096),
    "long rows": linear("plain", bf16, 72, 9000),
    "float32": linear("norm", f32, 96, 500),
    "weights in bf16": linear("plain", f32, 96, 500, w_dtype=bf16),
    "float64": linear("norm", f64, 40, 300),
    "int64": linear("plain", i64, 40, 300),
    "int8": linear("plain", i8, 40, 300),
}


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions(runner, name, table):
    make = CONTRACTIONS[name]
    _, buckets = choices(make(3).kernel, table)
    done = set()
    for lo, hi, schedule in buckets:
        rows = max(lo, 1) if hi is None or hi == lo else max(lo, (lo + hi) // 2)
        if schedule not in done:
            case = make(rows + (hi is None and lo > 0) * 87)
            narrow = case.kernel.params[case.written()[0]].type.dtype in (bf16, f16)
            check(runner, case, schedule, 8e-3 if narrow else 1e-5)
        done.add(schedule)


HEADS = {  # heads, groups, size, and more
    "wide groups": dict(heads=32, groups=4, size=128, dtype=bf16),
    "large heads": dict(heads=8, groups=4, size=256, dtype=bf16, window=40, softcap=30.0),
    "odd heads": dict(heads=6, groups=6, size=80, dtype=f16),
    "float32": dict(heads=8, groups=2, size=64, dtype=f32),
    "cache in float16": dict(heads=8, groups=2, size=64, dtype=bf16, kv_dtype=f16),
}


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", HEADS)
def test_attention(runner, name, table):
    def make(lengths, contexts):
        return samples.attention(lengths, contexts, page=16, **HEADS[name])

    _, buckets = choices(make([1], [9]).kernel, table)
    done = set()
    for lo, _, schedule in buckets:
        contexts = [(37 * i) % 150 + 1 for i in range(max(lo % MANY, 1))]
        batch = ([1] * len(contexts), contexts) if lo < MANY else ([37, 1, 70], [37, 90, 170])
        if schedule not in done:
            check(runner, make(*batch), schedule, 1e-5 if name == "float32" else 8e-3)
        done.add(schedule)
    assert len(done) > 1


DENSE = {  # arguments of dense attention: whose keys come in wide tiles, narrow ones, and in f32
    "one head a group": dict(heads=2, groups=2, size=128, dtype=bf16),
    "several": dict(heads=8, groups=2, size=64, dtype=f16, mask=(("s", "t"), bool_)),
    "large heads": dict(heads=2, groups=1, size=256, v_size=192, dtype=bf16, window=40),
    "float32": dict(heads=2, groups=1, size=80, is_causal=False),
}


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", DENSE)
def test_dense_attention(runner, name, table):
    _, buckets = choices(samples.dense_attention(**DENSE[name]).kernel, table)
    assert len(buckets) > 1
    for lo, hi, schedule in buckets:
        case = samples.dense_attention(hi or lo + 150, 230, **DENSE[name])
        check(runner, case, schedule, 1e-5 if name == "float32" else 8e-3)


ROWS = {
    "short": lambda: samples.norm("softmax", 50, 24),
    "persistent": lambda: samples.norm("layer_norm", 9, 4096),
    "halves": lambda: samples.norm("rms_norm", 9, 3000, bf16),
    "doubles": lambda: samples.norm("softmax", 9, 3000, f64),
    "swept": lambda: samples.norm("softmax", 5, 20000),
    "cut": lambda: samples.reductions(3, 32768),
    "long, of many": lambda: samples.reductions(40, 32768),
    "long halves": lambda: samples.reductions(3, 32768, bf16),
    "columns": samples.columns,
    "running": lambda: samples.cumulative(500),
    "few elements": samples.pointwise,
    "many elements": lambda: samples.pointwise(6000, most=8192),
    "vocabulary": lambda: samples.sample(128256),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_and_elements(runner, name):
    case = ROWS[name]()
    halves = any(case.kernel.params[i].type.dtype == bf16 for i in case.written())
    for _, _, schedule in choices(case.kernel, TABLES[0])[1]:
        check(runner, case, schedule, 8e-3 if halves else 1e-5)
