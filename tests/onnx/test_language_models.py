"""Language models in ONNX through `LLM`: the tokens that onnxruntime gives, alone and together."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.api.identity import file_identity
from tilewright.frontend.onnx.lm_capture import capture_onnx_lm
from tilewright.frontend.onnx.lm_folder import find_onnx
from tilewright.ir.evaluate import evaluate
from tilewright.passes import run
from tilewright.passes.pipelines import language_model

from .language_models import CONTEXT, LAYERS, VOCAB, exported, genai_model, greedy, with_tokenizer

pytest.importorskip("onnxruntime")
NEW = 9
PROMPTS = [np.random.default_rng(n).integers(4, VOCAB, n).tolist() for n in (1, 6, 23)]


@pytest.fixture(scope="module")
def genai(tmp_path_factory):
    """A folder as onnxruntime-genai has it, the weights in a file of their own."""
    folder = with_tokenizer(tmp_path_factory.mktemp("genai"))
    onnx.save(
        genai_model(), folder / "decoder.onnx", save_as_external_data=True, location="decoder.data"
    )
    decoder = {"filename": "decoder.onnx", "inputs": {"past_key_names": "past_key_values.%d.key"}}
    model = {"type": "phi", "context_length": 40, "eos_token_id": [2, 90], "decoder": decoder}
    (folder / "genai_config.json").write_text(json.dumps({"model": model}))
    return folder


@pytest.fixture(scope="module")
def optimum(tmp_path_factory):
    """A folder as optimum writes it: decoder and tokenizer beside each other, and a config."""
    folder = with_tokenizer(tmp_path_factory.mktemp("optimum"))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
        attn_implementation="eager", initializer_range=0.3,
    )  # fmt: skip
    exported(transformers.LlamaForCausalLM(config), folder / "model.onnx")
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("layout", ["genai", "optimum"])
def test_tokens_equal_those_of_onnxruntime(layout, request):
    folder = request.getfixturevalue(layout)
    wanted = [greedy(find_onnx(folder).model, prompt, NEW) for prompt in PROMPTS]
    params = tilewright.SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    with tilewright.LLM(str(folder), dtype="float32", target="cpu") as llm:
        for group in ([0], [1], [2], [0, 1, 2]):
            outputs = llm.generate([{"prompt_token_ids": PROMPTS[i]} for i in group], params)
            assert [list(o.outputs[0].token_ids) for o in outputs] == [wanted[i] for i in group]
        words = [f"w{token}" for token in PROMPTS[1]]
        (said,) = llm.generate([" ".join(words)], params)
        assert list(said.outputs[0].token_ids) == wanted[1]
        context, ends = (40, [2, 90]) if layout == "genai" else (CONTEXT, [2])
        assert llm.facts["context_len"] == context
        assert llm.facts["eos_ids"] == ends
        assert llm.facts["num_layers"] == LAYERS
        assert llm.facts["architecture"] == ("phi" if layout == "genai" else "LlamaForCausalLM")


def test_the_command_line_takes_the_folder(optimum):
    def tilewright_(*args):
        command = [sys.executable, "-m", "tilewright.cli", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True)

    options = ["--dtype", "float32", "--target", "cpu", "--json", "-q"]
    said = tilewright_("generate", optimum, "w7 w8", "--max-tokens", "3", *options)
    assert said.returncode == 0, said.stderr
    (result,) = json.loads(said.stdout)["results"]
    wanted = greedy(optimum / "model.onnx", [7, 8], 3)
    assert result["token_ids"] == wanted
    done = tilewright_("verify", optimum, *options, "--bisect")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["right"]
    assert verdict["reference"] == "onnxruntime"
    assert [len(case["results"]) for case in verdict["cases"]] == [1, 1, 1, 3]
    shown = json.loads(tilewright_("inspect", optimum, "--json").stdout)
    assert shown["kind"] == "ONNX model"


# ---- layouts, captured and paged, not compiled -------------------------------------------------


def small(attention, *, inputs=(), outputs=(), logits=("batch", "sequence", VOCAB)):
    """A model of one layer; `attention` appends its nodes and gives the name of what follows."""
    rng = np.random.default_rng(3)
    nodes = []

    def op(kind, *operands, outputs=1, **attributes):
        names = [f"{kind}_{len(nodes)}_{i}" for i in range(outputs)]
        nodes.append(helper.make_node(kind, operands, names, **attributes))
        return names if outputs > 1 else names[0]

    arrays = {
        "table": rng.standard_normal((VOCAB, 16)), "places": rng.standard_normal((20, 16)),
        "qkv": rng.standard_normal((16, 48)), "bias": rng.standard_normal(48),
        "head": rng.standard_normal((16, VOCAB)),
    }  # fmt: skip
    stored = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    numbers = {"zero": 0, "one": 1, "axis": [1]}
    stored += [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in numbers.items()]
    y = attention(op, op("Gather", "table", "input_ids"))
    nodes.append(helper.make_node("MatMul", [y, "head"], ["logits"]))
    kinds = TensorProto.INT64, TensorProto.FLOAT
    info = helper.make_tensor_value_info

    def kind_of(name):
        if name == "use_cache_branch":
            return TensorProto.BOOL
        return kinds["past" in name or "embeds" in name]

    graph = helper.make_graph(
        nodes,
        "small",
        [
            info("input_ids", kinds[0], ["batch", "sequence"]),
            *(info(n, kind_of(n), list(s)) for n, s in dict(inputs).items()),
        ],
        [info("logits", kinds[1], list(logits)), *(info(n, kinds[1], None) for n in outputs)],
        stored,
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


MASK = {"attention_mask": ("batch", "total")}
STACKED = {"past_0": (2, "batch", 2, "past", 8)}


def by_mask(op, x):
    """Positions are counted in the mask, and the last are taken; keys and values are stacked."""
    every = op("Sub", op("CumSum", "attention_mask", "one"), "one")
    length = op("Shape", "input_ids", start=1)
    places = op("Slice", every, op("Neg", length), op("Shape", every, start=1), "axis")
    x = op("Add", x, op("Gather", "places", places))
    y, _ = op(
        "Attention", x, "qkv", "bias", "", "past_0",
        outputs=2, domain="com.microsoft", num_heads=2, unidirectional=1,
    )  # fmt: skip
    return y


def without_past(op, x):
    """The causal mask is numbers, and there is no past: a decoder that is split in two files."""
    rows = op("MatMul", x, "qkv")
    q, k, v = op("Split", rows, outputs=3, axis=2, num_outputs=3)
    return op("Attention", q, k, v, q_num_heads=2, kv_num_heads=2, is_causal=1)


def merged(op, x):
    """One file for the first call and for later ones; positions of text in three axes."""
    places = op("Gather", "position_ids", "zero", axis=0)
    x = op("Add", x, op("Gather", "places", places))
    made = []

    def branch(name):
        def inner(kind, *operands, outputs=1, **attributes):
            names = [f"{name}_{kind}_{i}" for i in range(outputs)]
            made.append(helper.make_node(kind, operands, names, **attributes))
            return names if outputs > 1 else names[0]

        y = without_past(inner, x) if name == "first" else inner("Neg", x)
        info = helper.make_tensor_value_info(y, TensorProto.FLOAT, None)
        nodes = [made.pop(0) for _ in range(len(made))]
        return helper.make_graph(nodes, name, [], [info])

    flag = op("Squeeze", "use_cache_branch")
    return op("If", flag, then_branch=branch("later"), else_branch=branch("first"))


@pytest.mark.parametrize(
    ("attention", "inputs"),
    [
        (by_mask, MASK | STACKED),
        (without_past, {}),
        (merged, {"position_ids": (3, "batch", "sequence"), "use_cache_branch": (1,)}),
    ],
)
def test_other_layouts_become_a_model_over_pages(tmp_path, attention, inputs):
    """Captured, the logits of onnxruntime; after the passes, each attention is over pages."""
    import onnxruntime

    path = with_tokenizer(tmp_path) / "x.onnx"
    onnx.save(small(attention, inputs=inputs), path)
    captured = capture_onnx_lm(find_onnx(tmp_path))
    ids, places = np.array([PROMPTS[1]]), np.arange(6)[None]
    given = {
        "input_ids": ids, "attention_mask": np.ones((1, 6), np.int64), "position_ids": [places] * 3,
        "past_0": np.zeros((2, 1, 2, 0, 8), np.float32), "use_cache_branch": np.array([False]),
    }  # fmt: skip
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {value.name: np.array(given[value.name]) for value in session.get_inputs()}
    (theirs,) = session.run(["logits"], given)
    arguments = {"input_ids": ids, "position_ids": places}
    (ours,), _ = evaluate(captured.graph, arguments, captured.weights)
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())
    ops = [node.op.name for node in run(captured.graph, language_model()).graph.nodes]
    assert ops.count("paged_attention") == 1
    assert "attention" not in ops


# ---- what is no language model, or not to be found ---------------------------------------------


LONG = ("batch", "sequence", 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"inputs": {"inputs_embeds": LONG, "past_conv.0": ("batch", 16, 3)}},
            r"not those of a language model(.|\n)*x.onnx\n"
            r"  'inputs_embeds' \['batch', 'sequence', 16\]\n"
            r"  'past_conv.0' \['batch', 16, 3\] keeps a state of a fixed size\n  compile it as",
        ),
        (
            {"last": True},
            r"does not give logits of each token(.|\n)*f32\[1, 1, 96\], wanted is \[1, t, vocab",
        ),
    ],
)
def test_what_cannot_be_served_is_told(tmp_path, options, message):
    last = options.pop("last", False)
    model = small(without_past, **options)
    if last:  # of the rows that go into the head
        numbers = {"minus": [-1], "end": [2**62]}
        model.graph.initializer.extend(
            numpy_helper.from_array(np.array(v, np.int64), n) for n, v in numbers.items()
        )
        head = model.graph.node[-1]
        cut = helper.make_node("Slice", [head.input[0], "minus", "end", "axis"], ["last"])
        head.input[0] = "last"
        model.graph.node.insert(len(model.graph.node) - 1, cut)
    onnx.save(model, tmp_path / "x.onnx")
    with pytest.raises(tilewright.UnsupportedModel, match=message):
        tilewright.LLM(str(tmp_path), target="cpu")


def test_which_file_is_the_model(tmp_path):
    for name in ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"):
        (tmp_path / name).write_bytes(b"")
    found = find_onnx(tmp_path)
    assert found.model.name == "decoder_with_past_model.onnx"
    assert found.note.endswith("encoder_model.onnx, decoder_with_past_model.onnx is taken")
    assert find_onnx(tmp_path / "decoder_model.onnx").note == ""
    (tmp_path / "genai_config.json").write_text('{"model": {"decoder": {"filename": "a.onnx"}}}')
    with pytest.raises(tilewright.CheckpointError, match=r"file is not there(.|\n)*names 'a.onnx'"):
        find_onnx(tmp_path)


def test_a_folder_of_several_models_and_one_in_a_folder_of_its_own(tmp_path):
    inner = tmp_path / "onnx"
    inner.mkdir()
    (inner / "model_q4.onnx").write_bytes(b"")
    assert (found := find_onnx(tmp_path)).folder == tmp_path
    assert found.note == ""
    assert find_onnx(inner / "model_q4.onnx").folder == tmp_path
    (inner / "model_fp16.onnx").write_bytes(b"")
    wanted = r"is not known(.|\n)*onnx/model_fp16.onnx, onnx/model_q4.onnx; none is named model"
    with pytest.raises(tilewright.CheckpointError, match=wanted):
        find_onnx(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert find_onnx(tmp_path) is None  # the folder is transformers'


def test_a_model_without_a_tokenizer_takes_numbers(tmp_path):
    onnx.save(small(without_past), tmp_path / "model.onnx")
    captured = capture_onnx_lm(find_onnx(tmp_path))
    assert not captured.tokenizer.exists
    with pytest.raises(
        tilewright.CheckpointError, match=r"without a tokenizer(.|\n)*tokenizer.jso"
    ):
        captured.tokenizer.load()


def test_the_identity_of_a_model_is_that_of_all_its_data(genai, tmp_path):
    before = dict(file_identity(genai))
    assert {"decoder.onnx", "decoder.data", "tokenizer.json", "genai_config.json"} == set(before)
    copied = tmp_path / "copy"
    copied.mkdir()
    for name in before:  # as links, which is how downloads are kept
        (copied / name).symlink_to(genai / name)
    assert dict(file_identity(copied)) == before
    (copied / "decoder.data").unlink()
    data = bytearray((genai / "decoder.data").read_bytes())
    data[100] ^= 1
    (copied / "decoder.data").write_bytes(data)
    after = dict(file_identity(copied))
    assert [name for name in after if after[name] != before[name]] == ["decoder.data"]
