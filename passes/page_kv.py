"""Turn a dense causal language model into one over a paged cache and any mix of sequences."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..ir.builder import Rebuilder
from ..ir.dim import Dim, product, symbol
from ..ir.errors import PassError, UnsupportedModel, listed
from ..ir.graph import Graph, Node, Value
from ..ir.layout import (
    CONTEXT_LENS,
    NUM_PAGES,
    NUM_SEQS,
    PAGE_TABLE,
    POSITION_IDS,
    QUERY_STARTS,
    SLOTS,
    WIDTH,
    KVLayout,
    LayerKV,
    Pool,
)
from ..ir.types import DType, f32, i32
from . import findings
from .manager import Outcome, Pass
from .positions import Scores
from .token_axis import TokenFacts, analyse

NEW_SYMBOLS = (NUM_PAGES, NUM_SEQS, WIDTH)


@dataclass(frozen=True)
class PageKv(Pass):
    """Sequences share one program and one pool of pages; no model is written for the engine.

    The proof in `token_axis` comes first: a model that mixes tokens elsewhere is refused.
    """

    name = "page-kv"
    keeps_signature = False
    page_size: int = 16
    kv_dtype: DType | None = None  # None: the dtype of the model's keys and values
    max_tokens: int | None = None  # new tokens a step; None: as captured
    max_seqs: int | None = None

    def outcome(self, graph: Graph) -> Outcome:
        facts = analyse(graph)
        facts.require(graph.name)
        layers = decide(graph, facts, self.kv_dtype)
        layout = KVLayout(self.page_size, tuple(dict.fromkeys(layers.values())))
        for line in described(layout):
            findings.current().note(line)
        after = apply(graph, facts, layers, layout, self.max_seqs)
        tokens = after.symbols[facts.symbol]
        hi = tokens.hi if self.max_tokens is None else self.max_tokens
        narrowed = replace(tokens, lo=1, hi=hi)
        after = after.replace(symbols={**after.symbols, facts.symbol: narrowed})
        return Outcome(after, kv=layout)


def decide(graph: Graph, facts: TokenFacts, kv_dtype: DType | None) -> dict[Node, LayerKV]:
    """Pools for every attention over tokens, the same for those of the same keys and values.

    UnsupportedModel lists what has no paged form.
    """
    layers: dict[Node, LayerKV] = {}
    made: dict[tuple[Value, Value, int | None], LayerKV] = {}
    problems: list[str] = []
    found = [n for n in graph.nodes if n in facts.needed and n in facts.scores]
    for number, node in enumerate(found):
        if facts.axes[node.operands[1]] is None:
            continue  # every token over the same keys: nothing to keep
        problem = _unpaged(node)
        if problem:
            where = f" ({node.loc})" if node.loc else ""
            problems.append(f"attention {number}{where}: {problem}")
            continue
        (k, v), window = node.operands[1:3], _scores(facts, node).window
        if (k, v, window) not in made:
            keys = _pool(f"k_{len(made)}", k, kv_dtype)
            values = _pool(f"v_{len(made)}", v, kv_dtype)
            made[k, v, window] = LayerKV(keys, values, window)
        layers[node] = made[k, v, window]
    if problems:
        raise UnsupportedModel(
            "some attention has no paged form",
            facts=listed(problems),
            fix="compile the model as a plain module: tilewright.compile(module)",
        )
    return layers


def _scores(facts: TokenFacts, node: Node) -> Scores:
    found = facts.scores[node]
    assert isinstance(found, Scores), "what cannot be read was refused"
    return found


def _unpaged(node: Node) -> str | None:
    q, k, v = node.operands[:3]
    if q.type.rank != 4 or q.shape[0] != 1:
        return f"q is {q.type}: must be [1, heads, tokens, size]"
    if q.shape[-2] != k.shape[-2]:
        return f"q has {q.shape[-2]} tokens, k has {k.shape[-2]}"
    if not all(isinstance(d, int) for d in (k.shape[-3], k.shape[-1], v.shape[-1])):
        return f"k is {k.type}, v is {v.type}: heads and head sizes must be known"
    return None


def _pool(state: str, x: Value, dtype: DType | None) -> Pool:
    heads, size = x.shape[-3], x.shape[-1]
    assert isinstance(heads, int), "_unpaged has seen to it"
    assert isinstance(size, int), "_unpaged has seen to it"
    return Pool(state, heads, size, dtype or x.dtype)


def described(layout: KVLayout) -> list[str]:
    """The layout in words, a line for each kind of layer."""
    kinds: dict[str, list[str]] = {}
    for kv in layout.layers:
        keys, values = (f"{pool.head_dim} wide, {pool.dtype}" for pool in (kv.k, kv.v))
        kind = f"{kv.k.num_heads} heads, {keys}"
        kind += f", values {values}" if values != keys else ""
        kind += f", window {kv.window}" if kv.window is not None else ""
        kinds.setdefault(kind, []).append(f"{kv.k.state} {kv.v.state}")
    pages = f"pages of {layout.page_size} tokens, {layout.page_bytes} bytes each"
    return [pages, *(f"{kind}: {', '.join(states)}" for kind, states in kinds.items())]


def apply(
    graph: Graph,
    facts: TokenFacts,
    layers: Mapping[Node, LayerKV],
    layout: KVLayout,
    max_seqs: int | None = None,
) -> Graph:
    """The paged graph: metadata inputs, two pools a layer, positions instead of token numbers."""
    taken = [n for n in NEW_SYMBOLS if n in graph.symbols]
    if taken:
        raise PassError(f"page-kv: the graph already has symbols {taken}; is it paged already?")
    b = Rebuilder(graph)
    t = symbol(facts.symbol)
    pages = b.dim(NUM_PAGES, hint=64)
    seqs = b.dim(NUM_SEQS, 1, max_seqs, hint=1)
    width = b.dim(WIDTH, hint=8)
    slots = b.input(SLOTS, (t,), i32)
    table = b.input(PAGE_TABLE, (seqs, width), i32)
    starts = b.input(QUERY_STARTS, (seqs + 1,), i32)
    lens = b.input(CONTEXT_LENS, (seqs,), i32)
    pools = {
        pool: b.state(pool.state, pool.type(pages, layout.page_size).shape, pool.dtype)
        for pool in layout.pools
    }
    positions = set(facts.positions)
    for node in graph.nodes:
        if node not in facts.needed:
            continue
        with b.at(node.loc):
            if node in layers:
                kv = layers[node]
                q, k, v = (_tokens_first(b, b[x]) for x in node.operands[:3])
                for pool, x in ((kv.k, k), (kv.v, v)):
                    if pool.state not in b.updates:
                        b.updates[pool.state] = b.kv_append(pools[pool], x, slots)
                full = [b.updates[pool.state] for pool in (kv.k, kv.v)]
                scores = _scores(facts, node)
                attrs = {name: node.attrs[name] for name in ("scale", "softcap")}
                attrs |= {
                    name: getattr(scores, name) for name in ("window", "seen", "bias", "sink")
                }
                operands = (q, *full, table, starts, lens, *_heads(b, scores, q.shape[1]))
                out = b.paged_attention(*operands, **attrs)
                b[node.results[0]] = _heads_first(b, out)
            elif node in positions:
                b[node.results[0]] = _position(b, graph, node, t)
            else:
                b.copy(node)
    return b.finish()


def _heads(b: Rebuilder, scores: Scores, count: Dim) -> list[Value]:
    """The operand `heads` where there are numbers of heads: [H, n]."""
    columns = []
    for value in scores.columns:
        x = b.cast(b[value], dtype=f32)
        x = b.reshape(x, shape=(product(x.shape), 1))
        columns.append(b.broadcast_to(x, shape=(count, 1)))
    return [b.concat(*columns, axis=1)] if columns else []


def _tokens_first(b: Rebuilder, x: Value) -> Value:
    """[1, H, T, D] -> [T, H, D]"""
    _, heads, tokens, size = x.shape
    return b.reshape(b.transpose(x, perm=(0, 2, 1, 3)), shape=(tokens, heads, size))


def _heads_first(b: Rebuilder, x: Value) -> Value:
    """[T, H, D] -> [1, H, T, D]"""
    tokens, heads, size = x.shape
    return b.transpose(b.reshape(x, shape=(1, tokens, heads, size)), perm=(0, 2, 1, 3))


def _position(b: Rebuilder, graph: Graph, node: Node, t) -> Value:
    """iota over the tokens  ->  their positions in their own sequences"""
    given = next((v for v in graph.inputs if v.name == POSITION_IDS), None)
    if given is None:
        raise UnsupportedModel(
            "the model numbers its tokens and has no input position_ids to take the numbers from",
            where=node.loc or "",
            fix="capture it with position_ids as an input",
        )
    value = b.cast(b.reshape(given, shape=(t,)), dtype=node.attrs["dtype"])
    dtype = value.dtype
    if node.attrs["step"] != 1:
        value = b.mul(value, b.constant(node.attrs["step"], dtype))
    if node.attrs["start"] != 0:
        value = b.add(value, b.constant(node.attrs["start"], dtype))
    return value
