"""Attention and sampling: fixed templates, filled with sizes."""

from ...ir.dim import Dim
from ..loops import LoopKernel, PagedAttention, Sample
from . import dims

_KINDS = {"f32": "TwF32", "bf16": "TwBF16", "f16": "TwF16"}


def emit_attention(kernel: LoopKernel, part: PagedAttention, name: str) -> list[str]:
    """A function that computes the part."""
    q_bytes = kernel.params[part.q].type.dtype.nbytes
    return [
        f"struct {name}_shape {{",
        *("    " + line for line in _shape(kernel, part)),
        "};",
        "",
        f"static TwAttention<{name}_shape> {name}_sizes(const int64_t* d) {{",
        *("    " + line for line in _sizes(kernel, part, name)),
        "    return s;",
        "}",
        "",
        f"static void {name}(TW_ARGS) {{",
        f"    TwAttention<{name}_shape> s = {name}_sizes(d);",
        *(f"    const int64_t {dims.name(x)} = d[{i}];" for i, x in enumerate(kernel.symbols)),
        f"    s.q = (const char*)p[{part.q}] + {dims.text(part.q_offset)} * (int64_t){q_bytes};",
        f"    s.k = p[{part.k}];",
        f"    s.v = p[{part.v}];",
        f"    s.out = p[{part.out}];",
        f"    s.table = (const int32_t*)p[{part.page_table}];",
        f"    s.starts = (const int32_t*)p[{part.query_starts}];",
        f"    s.context = (const int32_t*)p[{part.context_lens}];",
        "    tw_attention(s, team);",
        "}",
    ]


def _shape(kernel: LoopKernel, part: PagedAttention) -> list[str]:
    stored = [kernel.params[number].type.dtype for number in (part.q, part.k, part.v, part.out)]
    kinds = [_KINDS[dtype.name] for dtype in stored]
    return [
        *(f"typedef {kind} {n};" for kind, n in zip(kinds, ("Q", "K", "V", "OUT"))),
        f"static constexpr int64_t heads = {part.num_heads}, kv_heads = {part.num_kv_heads};",
        f"static constexpr int64_t head_dim = {part.head_dim}, value_dim = {part.value_dim};",
        f"static constexpr int64_t page_size = {part.page_size};",
        f"static constexpr int64_t window = {part.window or 0};",
        f"static constexpr float scale = {part.scale!r}, softcap = {part.softcap or 0.0!r};",
    ]


def _sizes(kernel: LoopKernel, part: PagedAttention, name: str) -> list[str]:
    lines = [f"const int64_t {dims.name(x)} = d[{i}];" for i, x in enumerate(kernel.symbols)]
    lines.append(f"TwAttention<{name}_shape> s = {{}};")
    for field, dim in (
        ("tokens", part.tokens),
        ("sequences", part.sequences),
        ("width", part.table_width),
        ("q_token_stride", _or(part.q_token_stride, part.num_heads * part.head_dim)),
        ("q_head_stride", _or(part.q_head_stride, part.head_dim)),
    ):
        lines.append(f"s.{field} = {dims.text(dim)};")
    return lines


def _or(stride: Dim, dense: int) -> Dim:
    # a stride of 0 is one that was not given; a dim has no truth value
    return dense if stride == 0 else stride


def attention_scratch(kernel: LoopKernel, part: PagedAttention, name: str) -> list[str]:
    """Statements that raise need[] to what the part wants."""
    return [f"{name}_sizes(d).need(need);"]


def emit_sample(kernel: LoopKernel, part: Sample, name: str) -> list[str]:
    """A function that computes the part."""
    types = {
        "logits": "float", "temperature": "float", "top_k": "int32_t", "top_p": "float",
        "seed": "int64_t", "step": "int64_t",
    }  # fmt: skip
    pointers = [
        f"    const {type}* const {field} = (const {type}*)p[{getattr(part, field)}];"
        for field, type in types.items()
    ]
    return [
        f"static void {name}(TW_ARGS) {{",
        *(f"    const int64_t {dims.name(x)} = d[{i}];" for i, x in enumerate(kernel.symbols)),
        *pointers,
        f"    int32_t* const out = (int32_t*)p[{part.out}];",
        "    double* const scaled = (double*)team->scratch;",
        f"    const int64_t vocab = {part.vocab}, rows = {dims.text(part.rows)};",
        "    for (int64_t r; (r = tw_take(team, 0)) < rows;)",
        "        out[r] = tw_sample_row(logits + r * vocab, vocab, temperature[r], top_k[r],",
        "                               top_p[r], seed[r], step[r], scaled, scaled + vocab);",
        "}",
    ]


def sample_scratch(kernel: LoopKernel, part: Sample, name: str) -> list[str]:
    """Statements that raise need[] to what the part wants."""
    return [f"need[0] = tw_greater(need[0], {part.vocab * 16});"]
