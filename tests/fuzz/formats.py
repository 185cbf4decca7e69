"""What is damaged, and what reads it: one function a format, that may raise our errors only.

Each makes its sample once and returns `check(seed)`.
"""

import contextlib
import io
import json
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from .chat_templates import chat_template
from .check import Check, refused
from .mutate import damaged_bytes, damaged_json, damaged_value
from .onnx_models import onnx_model


def safetensors(folder: Path) -> Check:
    """Both readers; what is accepted covers its file without overlap."""
    from tilewright.frontend.shards import read_folder
    from tilewright.ir.lazy_arrays import LazyArrays
    from tilewright.ir.safetensors import read_header
    from tilewright.runtime.weight_file import read_weights, write_weights

    arrays = {n: np.arange(12, dtype=t).reshape(3, 4) for n, t in zip("abcd", "fdie")}
    whole = folder / "whole"
    with whole.open("wb") as file:
        write_weights(file, LazyArrays.of(arrays))
    data = whole.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    path, index = folder / "model.safetensors", folder / "model.safetensors.index.json"

    def check(seed: int) -> bool:
        rng = random.Random(seed)
        if rng.random() < 0.4:
            path.write_bytes(damaged_bytes(data, rng))
        else:
            text = damaged_json(header, rng)
            path.write_bytes(len(text).to_bytes(8, "little") + text + body)
        index.unlink(missing_ok=True)
        if rng.random() < 0.3:
            table = {"weight_map": dict.fromkeys(arrays, path.name)}
            index.write_bytes(damaged_json(table, rng))

        def read():
            found = read_folder(folder)
            total = sum(array.load().nbytes for array in found.values())
            assert total <= path.stat().st_size, "two tensors share bytes"
            entries = read_header(path.read_bytes()).values()
            spans = sorted((e.begin, e.begin + e.nbytes) for e in entries)
            assert all(a[1] <= b[0] for a, b in pairwise(spans)), "two tensors share bytes"

        ours = refused(lambda: read_weights(path.read_bytes(), "model"))
        return refused(read) and ours

    return check


def graph_text(folder: Path) -> Check:
    """Text of the IR: parsed, verified, printed and parsed again."""
    from tilewright.ir.parse import parse_graph
    from tilewright.ir.verify import verify

    text = """graph @block
  dim b in [1, 8]
  dim s in [1, ] multiple 4 hint 16
  input %x : f32[b, s, 64]
  weight %w 'layers.0.norm.weight' : f32[64]
  weight %m 'layers.0.mlp' : f32[128, 64]
{
  %0 = rms_norm(%x, %w) {eps=1e-05} : f32[b, s, 64]
  %1 = add(%0, %x) : f32[b, s, 64]
  %2 = matmul(%1, %m) {transpose_w=True} : f32[b, s, 128]
  %3 = reshape(%2) {shape=[b*s, 128]} : f32[b*s, 128]
  %4 = sum(%3) {axes=[1], keepdims=False} : f32[b*s]
  return %4
}
"""
    words = sorted(set(text.split())) + [
        "9" * 30,
        "-1",
        "inf",
        "max(s, b)",
        "s//0",
        "%nope",
        "'",
        "{",
    ]
    words += ["f32[" + "1, " * 70 + "1]", "f32[99999999999999999, 99999999999999999]", "(" * 99]
    words += ["(b+s+1)" + "*(b+s+2)" * 60, "0", "update %x = %0", "True", "[]", "1e400", "é"]
    # in the place of dims: what takes long, or overflows a stack, where nothing bounds it
    long = ["(b+s+1)" + "*(b+s+2)" * 900, "(" * 9000, "s" + "//s" * 3000, "-" * 9000, "s+" * 9000]

    def check(seed: int) -> bool:
        rng = random.Random(seed)
        lines = [line.split(" ") for line in text.splitlines()]
        for _ in range(rng.choice([1, 1, 2, 3])):
            line = rng.choice(lines)
            at = rng.choice([i for i, word in enumerate(line) if word] or [0])
            if rng.random() < 0.5:
                numbers = re.compile(r"\d+")
                line[at] = numbers.sub(lambda m: rng.choice([m[0], "0", "3", "64"]), line[at])
            else:
                line[at] = rng.choice(words)
            if rng.random() < 0.2:
                lines.insert(rng.randrange(len(lines)), list(rng.choice(lines)))
            if rng.random() < 0.1:
                del lines[rng.randrange(len(lines))]
        damaged = "\n".join(map(" ".join, lines))
        if rng.random() < 0.1:
            dims = list(re.finditer(r"(?<=[\[*,])[bs]\b", damaged))
            start, end = rng.choice(dims).span() if dims else (0, 0)
            damaged = damaged[:start] + rng.choice(long) + damaged[end:]
        if rng.random() < 0.2:
            damaged = damaged_bytes(damaged.encode(), rng).decode("utf-8", "replace")

        def read():
            graph = parse_graph(damaged)
            verify(graph)
            assert str(parse_graph(str(graph))) == str(graph)

        return refused(read)

    return check


def program(folder: Path) -> Check:
    """program.json, read, checked, and bound to sizes."""
    from tilewright.runtime.binding import Sizes
    from tilewright.runtime.program_json import program_from_json, program_to_json

    from ..runtime import step_programs
    from ..runtime.test_artifact import sample_program
    from ..runtime.test_check_program import chain

    makers = (step_programs.cond_program, step_programs.while_program, step_programs.scan_program)
    programs = [sample_program(), chain(), *(make(b"") for make in makers)]
    samples = [(p, json.loads(json.dumps(program_to_json(p)))) for p in programs]

    def check(seed: int) -> bool:
        rng = random.Random(seed)
        whole, data = rng.choice(samples)
        data = damaged_value(data, rng)

        def read():
            found = program_from_json(data, whole.blobs, lambda name: "")
            sizes = Sizes(found)
            for value in (1, 7, 512):
                values = {n: min(max(value, s.lo), s.hi or value) for n, s in found.symbols.items()}
                sizes.bind(values)

        return refused(read)

    return check


def signature(folder: Path) -> Check:
    """The signature of a stored module, read and then called."""
    from tilewright.runtime.signature_json import signature_from_json, signature_to_json

    from ..ir.test_signature import ARGS, KWARGS, SIGNATURE, program

    whole, outputs = signature_to_json(SIGNATURE), [np.zeros(()), np.ones((), int), np.zeros(2)]

    def check(seed: int) -> bool:
        data = damaged_value(whole, random.Random(seed))

        def read():
            found = signature_from_json(data, program())
            found.restore(outputs)
            found.flatten(ARGS, KWARGS)

        return refused(read)

    return check


def artifact(folder: Path) -> Check:
    """An artifact's files, with the manifest that fits them: what its author might have written."""
    from tilewright.cli.inspect import inspect
    from tilewright.runtime.artifact import check_machine, read_manifest, save_artifact
    from tilewright.runtime.storage import digest

    from ..api.test_artifact_facts import GOOD
    from ..runtime.test_artifact import sample

    path = save_artifact(folder / "artifact", replace(sample(), facts=GOOD))  # a language model's
    names = ["manifest.json", "program.json", "facts.json", "weights.safetensors"]
    whole = {name: (path / name).read_bytes() for name in names}

    def check(seed: int) -> bool:
        rng = random.Random(seed)
        for name, data in whole.items():
            (path / name).write_bytes(data)
        name = rng.choice(names)
        if name.endswith(".json"):
            data = damaged_json(json.loads(whole[name]), rng)
        else:
            data = damaged_bytes(whole[name], rng)
        (path / name).write_bytes(data)
        if name != "manifest.json":
            manifest = json.loads(whole["manifest.json"])
            manifest["files"][name] = {"bytes": len(data), "sha256": digest(data)}
            (path / "manifest.json").write_text(json.dumps(manifest))

        def read():
            check_machine(read_manifest(path), path)
            with contextlib.redirect_stdout(io.StringIO()):
                inspect(str(path))

        return refused(read)

    return check


def facts(folder: Path) -> Check:
    """facts.json, and what is done with it: a sum of its numbers, its texts as one."""
    from tilewright.api.artifact_facts import check_facts

    from ..api.test_artifact_facts import GOOD

    def check(seed: int) -> bool:
        data = damaged_value(GOOD, random.Random(seed))

        def read():
            check_facts(data, folder)
            assert data["context_len"] > 0
            numbers = [*data["eos_ids"], *data["seconds"].values(), data["vocab_size"]]
            texts = [data["dtype"], *data["special_tokens"].values(), *data["notes"]]
            for each in data["passes"]:
                numbers += [each["ms"], each["nodes"], *each["fired"].values()]
                numbers += [declined["count"] for declined in each["declined"]]
                texts += [each["pass"], *each["notes"], *data["chat_templates"].values()]
            return sum(numbers), "".join(texts)

        return refused(read)

    return check


def container(folder: Path) -> Check:
    """A zip of an artifact, damaged in its own bytes."""
    from tilewright.runtime.artifact import open_artifact, save_artifact

    from ..runtime.test_artifact import sample

    path = save_artifact(folder / "one.zip", sample())
    data = path.read_bytes()
    middle = data.index(b"PK\1\2")

    def check(seed: int) -> bool:
        rng = random.Random(seed)
        if rng.random() < 0.7:  # the directory at the end
            path.write_bytes(data[:middle] + damaged_bytes(data[middle:], rng))
        else:
            path.write_bytes(damaged_bytes(data, rng))
        return refused(lambda: open_artifact(path))

    return check


def config(folder: Path) -> Check:
    """config.json of a folder whose weights are right."""
    from tilewright.frontend.checkpoint import open_checkpoint

    from ..models import tiny

    tiny.make("llama").save_pretrained(folder)
    whole = json.loads((folder / "config.json").read_text())

    def check(seed: int) -> bool:
        (folder / "config.json").write_bytes(damaged_json(whole, random.Random(seed)))
        return refused(lambda: open_checkpoint(folder))

    return check


def tokenizer(folder: Path) -> Check:
    """tokenizer.json and tokenizer_config.json."""
    from tilewright.frontend.tokenizer_source import from_folder

    from ..errors.conftest import byte_tokenizer

    byte_tokenizer().save_pretrained(folder)
    names = ["tokenizer.json", "tokenizer_config.json"]
    whole = {name: json.loads((folder / name).read_text()) for name in names}
    whole[names[0]]["normalizer"] = {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}

    def check(seed: int) -> bool:
        rng = random.Random(seed)
        for name, value in whole.items():
            (folder / name).write_text(json.dumps(value))
        name = rng.choice(names)
        (folder / name).write_bytes(damaged_json(whole[name], rng))
        return refused(lambda: from_folder(folder).load().tokenizer.encode("a text").ids)

    return check


FORMATS = {
    f.__name__: f
    for f in (
        safetensors,
        graph_text,
        program,
        signature,
        artifact,
        facts,
        container,
        config,
        tokenizer,
        chat_template,
        onnx_model,
    )
}
