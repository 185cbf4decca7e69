"""Keys: the same whatever dims are called, another wherever a kernel is another."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.autotune.key import PARTS, differences, key_of
from tilewright.autotune.tasks import tasks_of
from tilewright.codegen.group import make_plan
from tilewright.codegen.lower import lower_group
from tilewright.ir.builder import Builder
from tilewright.ir.dim import symbol
from tilewright.ir.parse import parse_graph
from tilewright.ir.target import cpu, get_target
from tilewright.ir.text import print_plan
from tilewright.ir.types import bf16, f32

SM_90, SM_80 = get_target("sm_90"), get_target("sm_80")
NAMES = st.lists(st.sampled_from("abcdefgz"), min_size=3, max_size=3, unique=True)


def graph(names=("a", "b", "c"), width=48, dtype=f32, scale=2.0):
    """Products, a norm, a slice and a join over three dims of which each has another part."""
    b = Builder("g")
    rows, columns, before = (b.dim(name, 1, 64) for name in names)
    x = b.input("x", (rows, columns + before, 32), dtype)
    w = b.weight("w", (32, width), dtype)
    y = b.softmax(b.matmul(x, w), axis=-1)
    cut = b.slice(y, axis=1, start=before, stop=columns + before)
    return b.graph([b.mul(cut, b.constant(scale, dtype)), b.sum(cut, axes=(1,))])


def kernels(graph, target=SM_90):
    plan = make_plan(graph, target=target)
    return [lower_group(plan.graph, nodes, {}).kernel for nodes in plan.groups.values()]


def keys(graph, target=SM_90):
    return [key_of(kernel, target) for kernel in kernels(graph, target)]


@settings(derandomize=True, deadline=None, max_examples=30)
@given(NAMES)
def test_names_of_dims_decide_no_key(names):
    assert keys(graph(names)) == keys(graph())


def test_each_part_of_a_key_tells_of_its_own():
    plain, *_ = keys(graph())
    others = {
        "kernel": keys(graph(scale=3.0)),
        "dtypes": keys(graph(dtype=bf16)),
        "layout": keys(graph(width=64)),
    }
    changed = {part: set() for part in others}
    for part, found in others.items():
        for one, other in zip(keys(graph()), found, strict=True):
            changed[part] |= set(differences(one, other))
    assert changed["kernel"] == {"kernel"}
    assert "dtypes" in changed["dtypes"]
    assert "layout" in changed["layout"]
    assert differences(plain, keys(graph(), SM_80)[0]) == ("target",)
    assert differences(plain.at(1, 8), plain.at(9, None)) == ("bucket",)
    assert plain.at(1, 8).family == plain.at(9, None).family
    assert plain.at(1, 8).digest != plain.at(9, None).digest
    assert plain.at(1, 8).bounds == (1, 8)
    assert plain.at(9, None).bounds == (9, None)
    assert PARTS == ("kernel", "dtypes", "layout", "target", "codegen", "bucket")


@pytest.mark.parametrize("bucket", ["", "..", "3", "a..4", "3..x", "-1..4", "1...4", "4..1"])
def test_a_bucket_that_is_none_is_refused(bucket):
    key = replace(keys(graph())[0], bucket=bucket)
    with pytest.raises(ValueError, match="is no bucket"):
        _ = key.bounds


@pytest.mark.parametrize("target", [cpu(), SM_90])
def test_a_graph_read_back_has_the_same_tasks(target):
    made = graph()
    plan = make_plan(made, target=target)
    found = tasks_of(plan.graph, target)
    again = tasks_of(parse_graph(print_plan(plan)), target)
    assert list(found) == list(again)
    assert [t.count for t in found.values()] == [t.count for t in again.values()]


def test_a_kernel_that_runs_twice_is_one_task():
    b = Builder("g")
    s = b.dim("s", 1, 300)
    x = b.input("x", (s, 64))
    for name in ("w0", "w1", "w2"):
        x = b.matmul(x, b.weight(name, (64, 64)))
    tasks = tasks_of(b.graph([x]), cpu())
    assert [(key.bucket, task.count) for key, task in tasks.items()] == [
        ("0..1", 3), ("2..16", 3), ("17..128", 3), ("129..", 3),
    ]  # fmt: skip
    assert all(task.default.domain for task in tasks.values())


def test_a_kernel_is_the_same_in_another_process():
    """Hashes of text differ between processes, so none may travel with a dim."""
    dim = symbol("a") * symbol("b") + 3
    copy = pickle.loads(pickle.dumps(dim))
    assert copy == dim
    assert hash(copy) == hash(dim)
    assert b"_hash" not in pickle.dumps(dim)
    for kernel in kernels(graph()):
        assert key_of(pickle.loads(pickle.dumps(kernel)), SM_90) == key_of(kernel, SM_90)
