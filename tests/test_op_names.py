"""What an op is, its declaration says: passes and code generation ask for facts, not for names.

Left are passes whose work is to recognize or rewrite a pattern that they name, and a short list.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = 30

# files that recognize or rewrite what they name, and what that is (rules do so through `pat` too)
RECOGNIZE = {
    "codegen/encodings.py": "weights written out as (codes - zero) * scale",
    "passes/attention_form.py": "attention written out in products, softmax and masks",
    "passes/canonicalize.py": "the one way to write slices, joins, constants and comparisons",
    "passes/channels_last.py": "convolutions, and the views between them and what they read",
    "passes/constant_rules.py": "arithmetic with constants, positions and dims",
    "passes/carry_key_biases.py": "a bias that each key brings to the scores",
    "passes/fold_batch_norm.py": "a scale and a shift after a convolution",
    "passes/fold_constants.py": "constants",
    "passes/fuse_attention.py": "attention, its repeated heads and its masks",
    "passes/fuse_rms_norm.py": "an rms norm",
    "passes/fuse_rope.py": "rotary embedding",
    "passes/group_experts.py": "products with matrices that an index chooses",
    "passes/hoist_transposes.py": "a transpose that meets its inverse",
    "passes/lengths_of_tokens.py": "the largest position, and a choice by it",
    "passes/masks.py": "the conditions of causal masks and windows",
    "passes/merge_projections.py": "products of one x, with their scales and biases",
    "passes/patterns.py": "patterns: the language of recognition",
    "passes/positions.py": "sums and choices that a mask is made of",
    "passes/rewrite.py": "the driver of rules, which finds them by the op they name",
    "passes/scale_sums.py": "codes with a scale, as operators and models write them",
    "passes/split_prepare.py": "a weight that is stored by its other axis",
    "passes/stack_weights.py": "gated products",
    "passes/token_axis.py": "attention: where tokens may meet",
    "passes/view_rules.py": "pairs of views that are one",
}

# (file, test of a name) -> why the op does not say it
ALLOWED = {
    ("codegen/build_steps.py", "_MAKERS.get(node.op.name)"): "each op of control flow is a step",
    ("codegen/templates/pointwise.py", "value.node.op.name == 'reshape'"): (
        "a store in row-major order sees through the view that keeps it"
    ),
    ("codegen/templates/pointwise.py", "output.node.op.name == 'kv_append'"): (
        "the cache's layout, in which it stores, is a contract with the engine"
    ),
    ("passes/decompose.py", "node.op.name in self.keep"): "an option of the pass lists names",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    files = [p for d in ("passes", "codegen", "runtime") for p in (ROOT / d).rglob("*.py")]
    for path in sorted([*files, ROOT / "ir" / "ranges.py", ROOT / "ir" / "axes.py"]):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def is_name_of_op(node: ast.AST) -> bool:
    """`node.op.name`, `op.name`, `anchor_op.name`."""
    if not (isinstance(node, ast.Attribute) and node.attr == "name"):
        return False
    inner = node.value
    name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
    return name == "op" or name.endswith("_op")


def names_tested(tree: ast.AST) -> Iterator[str]:
    """Comparisons with, matches on and lookups by the name of an op, and ops fetched by name."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                if any(is_name_of_op(side) for side in (left, *others)):
                    yield ast.unparse(node)
            case ast.Match(subject=subject) if is_name_of_op(subject):
                yield from (ast.unparse(case.pattern) for case in node.cases)
            case ast.Subscript(slice=key) if is_name_of_op(key):
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id="get_op"), args=[ast.Constant()]):
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id="getattr"), args=[_, key, *_]) if any(
                is_name_of_op(inner) for inner in ast.walk(key)
            ):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]) if is_name_of_op(key):
                yield ast.unparse(node)


def found() -> list[tuple[str, str]]:
    return [(path, test) for path, tree in sources() for test in names_tested(tree)]


def test_ops_are_told_apart_by_facts():
    left = [each for each in found() if each[0] not in RECOGNIZE]
    assert sorted(set(left) - ALLOWED.keys()) == [], "ask a fact of the op (ir/op.py) instead"
    assert len(left) < MOST


def test_the_lists_hold_nothing_that_is_gone():
    assert sorted(ALLOWED.keys() - set(found())) == []
    assert sorted(RECOGNIZE.keys() - {path for path, _ in found()}) == []


def test_the_search_sees_each_way_of_asking():
    text = """
if node.op.name == "exp" or op.name in TABLE: pass
match value.node.op.name:
    case "exp" | "log": pass
TABLE[node.op.name]; TABLE.get(node.op.name, ()); getattr(self, f"_{node.op.name}"); get_op("exp")
print(node.op.name)
"""
    assert len(list(names_tested(ast.parse(text)))) == 7
