"""The verbs that run a language model, on the packaged one compiled once into an artifact."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.api.demo_model import demo_path
from tilewright.ir.parse import parse_graph
from tilewright.ir.target import get_target
from tilewright.ir.verify import verify

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Path:
    """`tilewright compile demo`, into a file."""
    path = tmp_path_factory.mktemp("artifact") / "smollm2.zip"
    command = [sys.executable, "-m", "tilewright.cli", "compile", "demo", "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{path}: cpu, ")
    return path


@pytest.mark.slow
class TestWithTheArtifact:
    def test_generate_streams_one_prompt(self, tilewright, artifact):
        streamed = tilewright("generate", artifact, QUESTION, "--chat")
        assert streamed.returncode == 0, streamed.stderr
        assert "Paris" in streamed.stdout
        assert "tokens/s" in streamed.stderr
        piped = tilewright("generate", artifact, "-", "--chat", "-q", stdin=QUESTION + "\n")
        assert (piped.stdout, piped.stderr) == (streamed.stdout, "")

    def test_generate_gives_several_prompts_what_each_gets_alone(
        self, tilewright, artifact, tmp_path
    ):
        (tmp_path / "prompts.txt").write_text("One, two, three,\n\nThe sky is\n")
        options = ["--json", "--max-tokens", "12", "--dtype", "bf16", "--prompt-logprobs", "1"]
        together = tilewright("generate", artifact, "--file", "prompts.txt", *options)
        results = json.loads(together.stdout)["results"]
        assert [each["prompt"] for each in results] == ["One, two, three,", "The sky is"]
        for each in results:
            alone = json.loads(tilewright("generate", artifact, each["prompt"], *options).stdout)
            assert alone["results"] == [each]
            assert len(each["token_ids"]) == 12
            assert each["finish_reason"] == "length"
            first, *scored = each["prompt_logprobs"]
            assert first is None
            assert len(scored) == each["prompt_tokens"] - 1
            assert all(place[0]["rank"] == 1 and place[0]["logprob"] <= 0 for place in scored)

    def test_a_run_from_an_artifact_loads_no_framework(self, artifact):
        code = (
            "import sys\nfrom tilewright import LLM\n"
            f"llm = LLM({str(artifact)!r})\nllm.generate('One, two,')\n"
            "print([m for m in ('torch', 'transformers', 'sympy', 'triton') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "[]\n", done.stderr

    def test_chat_keeps_the_conversation(self, tilewright, artifact):
        name, question = "My name is Ada.", "Please repeat my name."
        said = [name, "", question, "/help", "/reset", question, "/reset", name, question, "/exit"]
        done = tilewright(
            "chat", artifact, "--max-tokens", "12", "-q", stdin="\n".join([*said, "not read"])
        )
        assert done.returncode == 0, done.stderr
        answers = [line for line in done.stdout.split("\n") if line]
        assert len(answers) == 5
        assert answers[:2] == answers[3:]
        assert answers[1] != answers[2]

    def test_inspect(self, tilewright, artifact):
        done = tilewright("inspect", artifact, "--json", "--at", "t=1,rows=1")
        facts = json.loads(done.stdout)
        assert facts["facts"]["num_layers"] == 30
        assert facts["facts"]["fallback_ops"] == 0
        assert facts["sizes"]["t"] == 1
        # a decode step reads at least every weight but the embedding table
        moved = sum(kernel["bytes"] for kernel in facts["kernels"])
        assert moved > facts["weights"]["bf16"]["bytes"] * 0.9
        assert sum(kernel["launches"] for kernel in facts["kernels"]) == facts["launches"]
        name = facts["kernels"][0]["name"]
        text = tilewright("inspect", artifact).stdout
        assert name in text
        assert "us at the target's rates, launches included" in text
        for kernel in facts["kernels"]:
            assert kernel["least_us"] >= kernel["bytes"] / get_target("cpu").bandwidth * 1e6
            assert kernel["bound_by"] in ("memory", "arithmetic", "launch")
        assert name in tilewright("inspect", artifact, "--source", name).stdout
        assert "fuse-rms-norm" in tilewright("inspect", artifact, "--passes").stdout
        verify(parse_graph(tilewright("inspect", artifact, "--graph").stdout))

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            (["generate", "{}"], "OptionError: no prompt"),
            (["generate", "{}", ""], "RequestError: the prompt is empty"),
            (["generate", "{}", "a b " * 5000], "the model's context is 8192"),
            (["generate", "{}", "hi", "--dtype", "f33"], "choices: auto, float32, f32"),
            (["generate", "{}", "hi", "--dtype", "f32"], "it was compiled with dtype 'bf16'"),
            (["generate", "{}", "hi", "--target", "sm_90"], "it was compiled with target 'cpu'"),
            (["generate", "{}", "hi", "--target", "z80"], "OptionError: no target named 'z80'"),
            (["generate", "{}", "--file", "none.txt"], "none.txt is not a file"),
            (["compile", "demo", "-o", "{}"], "--force replaces an artifact"),
            (["inspect", "{}", "--source", "nope"], "OptionError: no kernel named 'nope'"),
            (["inspect", "{}", "--at", "t=0"], "OptionError: t is 0\n  its range is [1, 8192]"),
            (["inspect", "{}", "--at", "s=1"], "the program's dims are t, "),
        ],
    )
    def test_what_can_be_wrong(self, tilewright, artifact, args, says):
        done = tilewright(*(arg.replace("{}", str(artifact)) for arg in args))
        assert done.returncode == 1, done.stdout
        assert says in done.stderr
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) < 25

    def test_a_damaged_artifact(self, tilewright, artifact, tmp_path):
        data = bytearray(artifact.read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / "damaged.zip").write_bytes(data)
        done = tilewright("generate", "damaged.zip", "hi")
        assert done.returncode == 1
        assert "ArtifactError: the artifact is damaged" in done.stderr


@pytest.mark.slow
def test_demo_answers_and_says_how(tilewright):
    done = tilewright("demo", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert "Paris" in figures["answer"]
    assert list(figures["build_seconds"]) == ["import", "capture", "compile"]
    assert figures["fallback_ops"] == 0
    assert figures["kernels_per_layer"] <= 8
    assert figures["decode_tokens_per_second"] > 0
    text = tilewright("demo").stdout
    assert text.startswith(f"> {QUESTION}\n{figures['answer']}\n")
    for label in ["compile time", "decode", "kernels per layer", "fallback ops       0"]:
        assert label in text


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing", None, "CheckpointError: no such file or folder"),
        ("notes.txt", b"hello", "CheckpointError: not a model"),
        ("empty", {}, "the folder has no config.json"),
        ("cut.gguf", 4_000_000, "CheckpointError: truncated GGUF file"),
        ("zeros.gguf", b"\0" * 64, "CheckpointError"),
    ],
    ids=["missing", "text", "empty folder", "truncated", "zeros"],
)
def test_what_is_no_model(tilewright, tmp_path, name, content, says):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, int):
        path.write_bytes(demo_path().read_bytes()[:content])
    elif content is not None:
        path.mkdir()
    done = tilewright("generate", path, "hi")
    assert done.returncode == 1
    assert says in done.stderr
    assert name in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_inspect_reads_checkpoints_and_graphs(tilewright, tmp_path):
    facts = json.loads(tilewright("inspect", "demo", "--json").stdout)
    assert facts["metadata"]["llama.block_count"] == 30
    assert facts["tensors"]["Q4_1"]["count"] == 210
    (tmp_path / "g.ir").write_text(
        "graph @g\n  dim n in [1, ]\n  dim m in [0, 0]\n  input %x : f32[n]\n{\n"
        "  %0 = exp(%x) : f32[n]\n  return %0\n}\n"
    )
    text = tilewright("inspect", "g.ir").stdout
    assert "ops = {'exp': 1}" in text
    assert "dims = {'n': '[1, ]', 'm': '[0, 0]'}" in text
    assert "is no artifact" in tilewright("inspect", "g.ir", "--passes").stderr
    assert "nothing.ir does not exist" in tilewright("inspect", "nothing.ir").stderr


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_missed_before_capturing(tilewright, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('the front end was loaded')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = tilewright("generate", "demo", "hi", "--target", "sm_90", env={"PYTHONPATH": path})
    assert done.returncode == 1
    assert "DeviceError: a program for sm_90 needs an NVIDIA GPU" in done.stderr
    assert "no NVIDIA driver" in done.stderr


def test_a_missing_compiler_is_missed_before_capturing(tilewright, tmp_path):
    environment = {"TILEWRIGHT_CXX": "no-such-c++", "TILEWRIGHT_CACHE": tmp_path / "cache"}
    done = tilewright("compile", "demo", "-o", "out", env=environment)
    assert done.returncode == 1
    assert done.stderr == (
        "BuildError: no C++ compiler 'no-such-c++'\n"
        "  looked for no-such-c++ on PATH\n"
        "  install one (Debian: apt-get install g++), or name one with TILEWRIGHT_CXX\n"
    )


@pytest.mark.slow
def test_a_failing_compiler_says_why_and_leaves_its_source(tilewright, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'error: this compiler never works' >&2\nexit 3\n")
    compiler.chmod(0o755)
    environment = {
        "TILEWRIGHT_CXX": compiler,
        "TILEWRIGHT_CACHE": tmp_path / "cache",
        "TMPDIR": tmp_path,
    }
    from ..frontend.gguf_models import random_model, write_model  # loads the front end

    model = write_model(tmp_path / "model.gguf", random_model("llama"), "llama")
    done = tilewright("compile", model, "-o", "out", env=environment)
    assert done.returncode == 1
    assert "BuildError: the C++ compiler failed on " in done.stderr
    assert "error: this compiler never works" in done.stderr
    (source,) = re.findall(r"^  at (\S+)$", done.stderr, flags=re.MULTILINE)
    assert Path(source).is_file()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_interruption_leaves_nothing_half_written(tmp_path):
    """Ctrl-C while compiling: one line, code 130, no entry in the cache, no artifact."""
    command = [sys.executable, "-m", "tilewright.cli", "compile", "demo", "-o", "out"]
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path / "cache")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=6)  # importing and capturing take longer
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert err == "\ninterrupted\n"
    assert out == ""
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "cache").rglob("manifest.json")) == []
