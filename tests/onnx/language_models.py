"""Tiny language models in ONNX, of random weights, as onnxruntime-genai and optimum write them.

And onnxruntime's own greedy decoding of them, which keeps keys and values by hand.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCAB, WIDTH, INNER, LAYERS, CONTEXT = 96, 32, 48, 2, 64
HEADS, GROUPS, SIZE, BLOCK = 4, 2, 16, 16


class _Graph:
    """Nodes and initializers while they are written down."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.stored, self.count = [], [], 0

    def keep(self, name: str, array: np.ndarray) -> str:
        self.stored.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes) -> str:
        self.count += 1
        names = [f"{kind}_{self.count}_{i}" for i in range(outputs)]
        node = helper.make_node(kind, inputs, names, f"{kind}_{self.count}", domain=domain)
        node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        """x @ w^T in blocks of 4 bits."""
        w = self.rng.integers(0, 256, (rows, columns // BLOCK, BLOCK // 2)).astype(np.uint8)
        scales = self.rng.uniform(0.02, 0.05, rows * columns // BLOCK).astype(np.float32)
        codes, scale = self.keep(f"{name}.q", w), self.keep(f"{name}.s", scales)
        sizes = {"K": columns, "N": rows, "bits": 4, "block_size": BLOCK}
        return self.op("MatMulNBits", x, codes, scale, domain="com.microsoft", **sizes)


def genai_model(seed: int = 0) -> onnx.ModelProto:
    """GroupQueryAttention with rotary positions, skip norms, and weights of 4 bits."""
    g = _Graph(seed)
    normal, contrib = g.rng.standard_normal, {"domain": "com.microsoft"}
    table = g.keep("embed", normal((VOCAB, WIDTH)).astype(np.float32))
    angles = np.outer(np.arange(CONTEXT), 1 / 100 ** (np.arange(SIZE // 2) / (SIZE // 2)))
    tables = [
        g.keep(n, f(angles).astype(np.float32)) for n, f in (("cos", np.cos), ("sin", np.sin))
    ]
    one, axis = g.keep("one", np.array([1], np.int64)), g.keep("axis", np.array(1, np.int64))
    counted = g.op("ReduceSum", "attention_mask", one, keepdims=0)
    lengths = g.op("Cast", g.op("Sub", counted, one), to=TensorProto.INT32)
    total = g.op("Gather", g.op("Shape", "attention_mask"), axis)
    total = g.op("Cast", total, to=TensorProto.INT32)
    x, skip = g.op("Gather", table, "input_ids"), None
    past, present = [], []
    weight = lambda name: g.keep(name, g.rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))  # noqa: E731

    def norm(x: str, skip: str | None, name: str) -> tuple[str, str]:
        if skip is None:
            return g.op("SimplifiedLayerNormalization", x, weight(name), epsilon=1e-5), x
        both = g.op(
            "SkipSimplifiedLayerNormalization", skip, x, weight(name),
            outputs=4, epsilon=1e-5, **contrib,
        )  # fmt: skip
        g.nodes[-1].output[1:3] = ["", ""]  # statistics, which training reads
        return both[0], both[3]

    for i in range(LAYERS):
        h, skip = norm(x, skip, f"layers.{i}.norm")
        q, k, v = (
            g.linear(h, f"layers.{i}.{name}", n * SIZE, WIDTH)
            for name, n in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))
        )
        kept = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
        y, *new = g.op(
            "GroupQueryAttention", q, k, v, *kept, lengths, total, *tables,
            outputs=3, num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1,
            local_window_size=7 if i else -1, **contrib,
        )  # fmt: skip
        past, present = past + kept, present + new
        x, skip = norm(g.linear(y, f"layers.{i}.o", WIDTH, HEADS * SIZE), skip, f"layers.{i}.after")
        gate, up = (g.linear(x, f"layers.{i}.{name}", INNER, WIDTH) for name in ("gate", "up"))
        act = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
        x = g.linear(act, f"layers.{i}.down", WIDTH, INNER)
    x, _ = norm(x, skip, "norm")
    logits = g.linear(x, "head", VOCAB, WIDTH)
    after = [name.replace("past_key_values", "present") for name in past]
    renamed = {logits: "logits", **dict(zip(present, after))}
    for node in g.nodes:
        node.output[:] = [renamed.get(name, name) for name in node.output]
    kinds = TensorProto.INT64, TensorProto.FLOAT
    info = helper.make_tensor_value_info
    inputs = [
        info("input_ids", kinds[0], ["batch_size", "sequence_length"]),
        info("attention_mask", kinds[0], ["batch_size", "total_sequence_length"]),
        *(info(n, kinds[1], ["batch_size", GROUPS, "past_sequence_length", SIZE]) for n in past),
    ]
    outputs = [
        info("logits", kinds[1], ["batch_size", "sequence_length", VOCAB]),
        *(info(n, kinds[1], ["batch_size", GROUPS, "total_sequence_length", SIZE]) for n in after),
    ]
    graph = helper.make_graph(g.nodes, "main_graph", inputs, outputs, g.stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def with_tokenizer(folder: Path) -> Path:
    """The folder, with a tokenizer of the words w4, w5 ... whose `</s>` is token 2."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"w{i}": i for i in range(4, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def greedy(path: Path, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens after a prompt by onnxruntime, one a call, which takes what the last call gave."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {value.name: value for value in session.get_inputs()}
    shapes = {n: [d if isinstance(d, int) else 0 for d in v.shape[1:]] for n, v in inputs.items()}
    given = {n: np.zeros((1, *shapes[n]), np.float32) for n in inputs if n.startswith("past")}
    tokens, new = list(prompt), list(prompt)
    for _ in range(count):
        places = np.arange(len(tokens) - len(new), len(tokens))[None]
        ones = np.ones((1, len(tokens)), np.int64)
        over = {"input_ids": np.array([new]), "attention_mask": ones, "position_ids": places}
        given |= {name: over[name] for name in over if name in inputs}
        names = [output.name for output in session.get_outputs()]
        results = dict(zip(names, session.run(None, given)))
        new = [int(results["logits"][0, -1].argmax())]
        tokens += new
        past = [name for name in given if name.startswith("past")]
        given = {name: results[name.replace("past_key_values", "present")] for name in past}
    return tokens[len(prompt) :]


def exported(module, path: Path) -> None:
    """A transformers module as optimum exports it: traced, with attention written out."""
    import torch
    from transformers.cache_utils import DynamicCache

    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module.eval()

        def forward(self, input_ids, attention_mask, position_ids, *flat):
            given = self.module(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                past_key_values=DynamicCache(list(zip(flat[::2], flat[1::2]))),
            )  # fmt: skip
            layers = given.past_key_values.layers
            return given.logits, *(x for layer in layers for x in (layer.keys, layer.values))

    config = module.config
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    size = config.hidden_size // config.num_attention_heads
    names = [f"past_key_values.{i}.{x}" for i in range(LAYERS) for x in ("key", "value")]
    over = ["input_ids", "attention_mask", "position_ids"]
    past = [torch.randn(2, heads, 4, size) for _ in names]
    ids, mask, places = torch.ones(2, 3).long(), torch.ones(2, 7).long(), torch.arange(4, 7)[None]
    axes = {name: {0: "batch", 1: "sequence"} for name in over}
    axes["attention_mask"] = {0: "batch", 1: "past + sequence"}
    axes |= {name: {0: "batch", 2: "past"} for name in names}
    outputs = ["logits", *(name.replace("past_key_values", "present") for name in names)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter is the older one, and says so
        torch.onnx.export(
            Flat(), (ids, mask, places.repeat(2, 1), *past), str(path), dynamo=False,
            input_names=[*over, *names], output_names=outputs, dynamic_axes=axes, opset_version=17,
        )  # fmt: skip
