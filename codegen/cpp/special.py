"""Attention and sampling: fixed templates, filled with sizes."""

from ...ir.dim import Dim, product
from ...ir.types import DType, bool_, f32, i32
from ..loops import Element, LoopKernel, Sample
from ..templates.attention import Attention, Heads, Located
from . import dims
from .elements import Scope
from .scalars import VALUE_TYPES, constant, convert
from .schedules import QueriesSchedule

_KINDS = {"f32": "TwF32", "bf16": "TwBF16", "f16": "TwF16", "bool": "TwBool"}


def emit_attention(
    kernel: LoopKernel, part: Attention, name: str, schedule: QueriesSchedule
) -> list[str]:
    """A function that computes the part."""
    metadata = ("table", "query_starts", "context_lens")
    pointers = [] if part.pages is None else [getattr(part.pages, field) for field in metadata]
    rows = [f"static constexpr int64_t tile_rows = {schedule.rows};"] if schedule.rows else []
    return [
        f"struct {name}_shape {{",
        *("    " + line for line in (*_shape(kernel, part), *rows)),
        "};",
        "",
        f"static TwAttention<{name}_shape> {name}_sizes(const int64_t* d) {{",
        *("    " + line for line in _sizes(kernel, part, name)),
        "    return s;",
        "}",
        "",
        f"static void {name}(TW_ARGS) {{",
        f"    TwAttention<{name}_shape> s = {name}_sizes(d);",
        *("    " + line for line in dims.given(kernel.symbols)),
        *(f"    {line}" for line in _pointers(kernel, part)),
        *(() if part.heads is None else (f"    s.numbers = (const float*)p[{part.heads.param}];",)),
        *(
            f"    s.{field} = (const int32_t*)p[{number}];"
            for field, number in zip(("table", "starts", "context"), pointers)
        ),
        "    tw_attention(s, team);",
        "}",
    ]


def _views(part: Attention) -> dict[str, Located]:
    views = {"q": part.q, "k": part.k, "v": part.v, "out": part.out}
    return views if part.mask is None else views | {"mask": part.mask}


def _shape(kernel: LoopKernel, part: Attention) -> list[str]:
    kinds = {n: _KINDS[kernel.params[v.param].type.dtype.name] for n, v in _views(part).items()}
    is_bool = part.mask is not None and kernel.params[part.mask.param].type.dtype == bool_
    heads = part.heads or Heads(0, 0, None)
    page_size = 0 if part.pages is None else part.pages.size
    return [
        *(f"typedef {kind} {n.upper()};" for n, kind in kinds.items()),
        *(() if part.mask else ("typedef TwF32 MASK;",)),
        f"static constexpr int64_t heads = {part.num_heads}, kv_heads = {part.num_kv_heads};",
        f"static constexpr int64_t head_dim = {part.head_dim}, value_dim = {part.value_dim};",
        f"static constexpr int64_t page_size = {page_size}, batch_rank = {len(part.batch)};",
        f"static constexpr int64_t window = {part.window or 0};",
        f"static constexpr bool causal = {str(part.is_causal).lower()};",
        f"static constexpr int mask_kind = {0 if part.mask is None else 1 if is_bool else 2};",
        f"static constexpr float scale = {part.scale!r}, softcap = {part.softcap or 0.0!r};",
        f"static constexpr float unseen = {constant(part.unseen, f32)};",
        f"static constexpr int64_t columns = {heads.columns};",
        f"static constexpr int64_t sink = {-1 if heads.sink is None else heads.sink};",
        *_of_positions(kernel, "picks", "seen", part.seen, bool_, i32, 0),
        *_of_positions(kernel, "biased", "bias", part.bias, f32, f32, heads.columns),
    ]


def _of_positions(
    kernel: LoopKernel,
    flag: str,
    name: str,
    element: Element | None,
    result: DType,
    dtype: DType,
    columns: int,
) -> list[str]:
    """A member function of the positions of a query and of a key; `flag` says whether there is."""
    has = f"static constexpr bool {flag} = {str(element is not None).lower()};"
    if element is None:
        return [has]
    texts = {"position": "position", "key": "key"}
    texts |= {f"head{i}": f"head[{i}]" for i in range(columns)}
    scope = Scope(kernel, refs={n: (text, frozenset()) for n, text in texts.items()})
    value = convert(scope.emit(element), element.dtype, result)
    given = f"{VALUE_TYPES[dtype.name]} position, {VALUE_TYPES[dtype.name]} key"
    return [
        has,
        f"TW_INLINE {VALUE_TYPES[result.name]} {name}(const float* head, {given}) {{",
        *("    " + line for line in scope.lines),
        f"    return {value};",
        "}",
    ]


def _sizes(kernel: LoopKernel, part: Attention, name: str) -> list[str]:
    fields: dict[str, Dim] = {"tokens": part.queries, "keys": part.keys}
    if part.pages is None:
        fields["sequences"] = product(part.batch)
    else:
        fields |= {"sequences": part.pages.sequences, "width": part.pages.width}
    for i, size in enumerate(part.batch):
        fields[f"batch[{i}]"] = size
    for view, given in _views(part).items():
        *batch, head, token = given.strides if view != "mask" else given.strides[:-1]
        fields |= {f"{view}.head": head, f"{view}.token": token}
        # the pool's first stride is that of pages, which the kernel knows
        for i, stride in enumerate(batch if part.pages is None else ()):
            fields[f"{view}.batch[{i}]"] = stride
    if part.mask is not None:
        fields["mask_key"] = part.mask.strides[-1]
    return [
        *dims.given(kernel.symbols),
        f"TwAttention<{name}_shape> s = {{}};",
        *(f"s.{field} = {dims.text(dim)};" for field, dim in fields.items() if dim != 0),
    ]


def _pointers(kernel: LoopKernel, part: Attention) -> list[str]:
    lines = []
    for name, view in _views(part).items():
        nbytes = kernel.params[view.param].type.dtype.nbytes
        first = f"(const char*)p[{view.param}] + {dims.text(view.offset)} * (int64_t){nbytes}"
        lines.append(f"s.{name}.p = {first};")
    return lines


def attention_scratch(
    kernel: LoopKernel, part: Attention, name: str, schedule: QueriesSchedule
) -> list[str]:
    """What tw_attention.h asks for these sizes."""
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
        *("    " + line for line in dims.given(kernel.symbols)),
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
    """A row in f64, twice."""
    return [f"need[0] = tw_greater(need[0], {part.vocab * 16});"]
