"""Operations that work element by element.

torch function, kinds of arguments, as in `test_aten.py`.
"""

import torch
import torch.nn.functional as F

ELEMENTS = {
    # arithmetic
    "add": (lambda x, y: torch.add(x, y, alpha=3), "x x"),
    "add_numbers": (lambda x, i: x + 1 + i + 2.5, "x i"),
    "int_true_div": (lambda i, j: i / j, "i i+"),
    "div_floor": (lambda i, j: torch.div(i, j, rounding_mode="floor"), "i i+"),
    "div_trunc": (lambda i, j: torch.div(-i, j, rounding_mode="trunc"), "i i+"),
    "div_trunc_float": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), "x p"),
    "floor_divide": (lambda i, j: i // j, "i i+"),
    "remainder": (lambda x, i, j: (x % 1.5, i % j), "x i i+"),
    "fmod": (lambda x: torch.fmod(x, 1.5), "x"),
    "rsub": (lambda x: 1 - x, "x"),
    "pow": (lambda x, p: (x**2, x**3, p**0.5, p**-0.5, p**-1, p**2.5, 2**x, x**0, x**1), "x p"),
    "pow_tensor": (lambda p, x: p**x, "p x"),
    "int_square": (lambda i: i**2, "i"),
    "maximum": (lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)), "x row"),
    "clamp": (lambda x: (x.clamp(-1, 1), x.clamp(min=0), torch.clamp_max(x, 0.5)), "x"),
    "lerp_addcmul": (lambda x, p: (torch.lerp(x, p, 0.3), torch.addcmul(x, p, x, value=2)), "x p"),
    "addcdiv": (lambda x, p: torch.addcdiv(x, x, p, value=0.5), "x p"),
    "promotion": (lambda i, x: (i * 0.5, i + x.float(), i.int() + i, x.float() * 2), "i x"),
    "zero_dim": (lambda x, row: x.float() * row[0], "x row"),
    # comparisons, logic
    "compare": (lambda x, y: (x < y, x >= 0, x.ne(y), x == x, x.gt(1), y.le(x)), "x x"),
    "compare_mixed": (lambda i, x: (i > x, i == 2, i < 1.5), "i x"),
    "logic": (
        lambda m, i: (m & (i > 1), m | (i > 1), m ^ (i > 1), ~m, torch.logical_not(i)),
        "m i",
    ),
    "logical": (lambda i, x: (torch.logical_and(i, x), torch.logical_or(i, i)), "i x"),
    "bits": (lambda i: (i & 3, i | 4, i ^ 1, ~i), "i"),
    "bool_arithmetic": (lambda m: (m + m, m * m, m.long() + 1), "m"),
    "where": (lambda m, x: (torch.where(m, x, 0.0), torch.where(m, x, x * 2)), "m x"),
    "masked_fill": (lambda m, x: x.masked_fill(m, float("-inf")), "m x"),
    "isnan": (lambda p: (torch.isnan(p / 0 - p / 0), torch.isinf(p / 0)), "p"),
    # one operand
    "unary": (
        lambda x: (x.exp(), x.expm1(), x.sin(), x.cos(), x.tanh(), x.erf(), x.sigmoid(), x.neg()),
        "x",
    ),
    "unary_positive": (
        lambda p: (p.log(), p.log1p(), p.sqrt(), p.rsqrt(), p.reciprocal(), p.log2(), p.log10()),
        "p",
    ),
    "rounding": (lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.abs(), x.sign()), "x"),
    "more_unary": (lambda x: (x.exp2(), x.tan(), x.square(), torch.positive(x)), "x"),
    "int_to_float": (lambda i: (i.exp(), i.sigmoid(), i.sqrt()), "i"),
    "casts": (lambda x, i: (x.float(), x.long(), i.double(), i.to(torch.int32), x > 0), "x i"),
    "bf16_cast": (lambda x: x.to(torch.float32).to(torch.float64), "x"),
    # activations
    "activations": (
        lambda x: (F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.relu(x), F.relu6(x)),
        "x",
    ),
    "hard_activations": (lambda x: (F.hardtanh(x), F.hardsigmoid(x), F.hardswish(x)), "x"),
    "soft_activations": (
        lambda x: (F.leaky_relu(x), F.elu(x), F.selu(x), F.celu(x), F.softplus(x), F.mish(x)),
        "x",
    ),
    "log_sigmoid": (lambda x: (F.logsigmoid(x), F.threshold(x, 0.5, 9.0)), "x"),
    "glu": (lambda x: F.glu(x), "x"),
}
