"""Language models written by hand in the IR, the way a capture of Hugging Face code comes out."""

from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir.builder import Builder
from tilewright.ir.graph import Graph, Value
from tilewright.ir.types import f32, i64


@dataclass(frozen=True)
class Config:
    """Sizes and variants of a small decoder."""

    layers: int = 2
    width: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    inner: int = 48
    vocab: int = 64
    max_tokens: int = 512
    tied: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    gemma: bool = False  # (1 + weight) norms, norms after the blocks, scaled embedding, softcap
    window: int | None = None
    rotary_dim: int | None = None  # partial rotary
    slopes: bool = False  # a bias that grows with the distance, by a number of each head
    chunk: int | None = None  # positions that see one another
    sinks: bool = False
    fused_linears: bool = False  # one projection for q, k, v and one for gate, up


class Decoder:
    """Builds the graph of one decoder."""

    def __init__(self, config: Config):
        self.c = config
        self.b = Builder("model")
        self.t = self.b.dim("t", 1, config.max_tokens, hint=64)

    def weight(self, name: str, *shape: int) -> Value:
        return self.b.weight(name, shape)

    def number(self, value: float) -> Value:
        return self.b.constant(value, f32)

    def norm(self, x: Value, name: str) -> Value:
        """x * rsqrt(mean(x^2) + eps), then the weight from the left, as LlamaRMSNorm does it."""
        b = self.b
        weight = self.weight(f"{name}.weight", x.shape[-1])
        variance = b.mean(b.pow(x, self.number(2.0)), axes=(-1,), keepdims=True)
        normed = b.mul(x, b.rsqrt(b.add(variance, self.number(1e-6))))
        if self.c.gemma:
            return b.mul(normed, b.add(weight, self.number(1.0)))
        return b.mul(weight, normed)

    def linear(self, x: Value, name: str, outs: int, bias: bool = False) -> Value:
        y = self.b.matmul(x, self.weight(f"{name}.weight", outs, x.shape[-1]), transpose_w=True)
        return self.b.add(y, self.weight(f"{name}.bias", outs)) if bias else y

    def cos_sin(self, position_ids: Value) -> tuple[Value, Value]:
        b, size = self.b, (self.c.rotary_dim or self.c.head_dim)
        inv_freq = self.weight("rotary.inv_freq", size // 2)
        wide = b.broadcast_to(b.reshape(inv_freq, shape=(1, size // 2, 1)), shape=(1, size // 2, 1))
        at = b.cast(b.reshape(position_ids, shape=(1, 1, self.t)), dtype=f32)
        freqs = b.transpose(b.matmul(wide, at), perm=(0, 2, 1))
        emb = b.concat(freqs, freqs, axis=-1)
        return tuple(b.mul(f(emb), self.number(1.0)) for f in (b.cos, b.sin))

    def rotate(self, x: Value, cos: Value, sin: Value) -> Value:
        b, size = self.b, cos.shape[-1]
        cos, sin = (b.reshape(v, shape=(1, 1, self.t, size)) for v in (cos, sin))
        whole = x.shape[-1]
        part = x if size == whole else b.slice(x, axis=-1, start=0, stop=size)
        low = b.slice(part, axis=3, start=0, stop=size // 2)
        high = b.slice(part, axis=3, start=size // 2, stop=size)
        half = b.concat(b.neg(high), low, axis=-1)
        turned = b.add(b.mul(part, cos), b.mul(half, sin))
        if size == whole:
            return turned
        return b.concat(turned, b.slice(x, axis=-1, start=size, stop=whole), axis=-1)

    def heads(self, x: Value, count: int, name: str | None = None) -> Value:
        b, size = self.b, self.c.head_dim
        x = b.reshape(x, shape=(1, self.t, count, size))
        if name is not None and self.c.qk_norm:
            x = self.norm(x, name)
        return b.transpose(x, perm=(0, 2, 1, 3))

    def attention(self, x: Value, name: str, cos: Value, sin: Value) -> Value:
        b, c = self.b, self.c
        q_size, kv_size = c.heads * c.head_dim, c.kv_heads * c.head_dim
        if c.fused_linears:
            qkv = self.linear(x, f"{name}.qkv_proj", q_size + 2 * kv_size)
            edges = (0, q_size, q_size + kv_size, q_size + 2 * kv_size)
            q, k, v = (b.slice(qkv, axis=2, start=i, stop=j) for i, j in pairwise(edges))
        else:
            q = self.linear(x, f"{name}.q_proj", q_size, c.qkv_bias)
            k = self.linear(x, f"{name}.k_proj", kv_size, c.qkv_bias)
            v = self.linear(x, f"{name}.v_proj", kv_size, c.qkv_bias)
        q = self.rotate(self.heads(q, c.heads, f"{name}.q_norm"), cos, sin)
        k = self.rotate(self.heads(k, c.kv_heads, f"{name}.k_norm"), cos, sin)
        v = self.heads(v, c.kv_heads)
        a = b.attention(
            q, k, v, *self.mask(name), scale=c.head_dim**-0.5, is_causal=True, window=c.window,
            softcap=30.0 if c.gemma else None,
        )  # fmt: skip
        a = b.reshape(b.transpose(a, perm=(0, 2, 1, 3)), shape=(1, self.t, q_size))
        return self.linear(a, f"{name}.o_proj", c.width)

    def mask(self, name: str) -> list[Value]:
        """What attention takes besides q, k and v."""
        b, c = self.b, self.c
        if not c.slopes and not c.chunk and not c.sinks:
            return []
        key = b.iota(length=self.t)
        position = b.reshape(key, shape=(self.t, 1))
        mask = b.full(value=0.0, shape=(1, 1), dtype=f32)
        if c.chunk:
            piece, own = (b.floordiv(x, b.constant(c.chunk, i64)) for x in (key, position))
            mask = b.where(b.eq(piece, own), mask, self.number(float("-inf")))
        if c.slopes:
            far = b.cast(b.sub(position, key), dtype=f32)
            mask = b.add(b.mul(self.weight(f"{name}.slopes", c.heads, 1, 1), far), mask)
        return [mask, self.weight(f"{name}.sinks", c.heads)] if c.sinks else [mask]

    def mlp(self, x: Value, name: str) -> Value:
        b, c = self.b, self.c
        act = b.gelu_tanh if c.gemma else b.silu
        if c.fused_linears:
            both = self.linear(x, f"{name}.gate_up_proj", 2 * c.inner)
            gate = b.slice(both, axis=-1, start=0, stop=c.inner)
            up = b.slice(both, axis=-1, start=c.inner, stop=2 * c.inner)
            inner = b.mul(up, act(gate))
        else:
            gate = self.linear(x, f"{name}.gate_proj", c.inner)
            inner = b.mul(act(gate), self.linear(x, f"{name}.up_proj", c.inner))
        return self.linear(inner, f"{name}.down_proj", c.width)

    def build(self) -> Graph:
        b, c = self.b, self.c
        ids = b.input("input_ids", (1, self.t), i64)
        position_ids = b.input("position_ids", (1, self.t), i64)
        table = self.weight("embed_tokens.weight", c.vocab, c.width)
        h = b.gather(table, ids)
        if c.gemma:
            h = b.mul(h, self.number(c.width**0.5))
        cos, sin = self.cos_sin(position_ids)
        for i in range(c.layers):
            name = f"layers.{i}"
            with b.at(name):
                a = self.attention(self.norm(h, f"{name}.input_norm"), f"{name}.attn", cos, sin)
                if c.gemma:
                    a = self.norm(a, f"{name}.post_attn_norm")
                h = b.add(h, a)
                m = self.mlp(self.norm(h, f"{name}.post_norm"), f"{name}.mlp")
                if c.gemma:
                    m = self.norm(m, f"{name}.post_mlp_norm")
                h = b.add(h, m)
        h = self.norm(h, "norm")
        h = b.slice(h, axis=1, start=0, stop=self.t)
        head = table if c.tied else self.weight("lm_head.weight", c.vocab, c.width)
        logits = b.matmul(h, head, transpose_w=True)
        if c.gemma:
            cap = self.number(30.0)
            logits = b.mul(b.tanh(b.div(logits, cap)), cap)
        return b.graph([logits])


def decoder(**fields) -> Graph:
    """A decoder's graph; fields as in Config."""
    return Decoder(Config(**fields)).build()
