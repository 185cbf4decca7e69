"""Any pass of a language model is reproduced from the text that was dumped before it."""

from tilewright import passes
from tilewright.codegen.group import make_plan
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.parse import parse_graph
from tilewright.ir.text import print_graph, print_plan
from tilewright.ir.types import bf16
from tilewright.passes.pipelines import language_model

from ..models.tiny import make


def test_each_pass_from_its_dump(tilewright, tmp_path):
    captured = capture_causal_lm(make("llama-tied", num_hidden_layers=3))
    pipeline = language_model(bf16, max_tokens=8192)
    passes.run(captured.graph, pipeline, check=0, dump=tmp_path)
    before = tmp_path / "00-input.ir"
    for number, each in enumerate(pipeline, 1):
        after = tmp_path / f"{number:02}-{each.name}.ir"
        expected = print_graph(parse_graph((after if after.exists() else before).read_text()))
        again = passes.parse_pipeline(str(each))  # the text that `opt --passes` takes
        assert again == (each,)
        result = passes.run(parse_graph(before.read_text()), again, check=0)
        assert print_graph(result.graph) == expected, f"{each} differs when run on {before.name}"
        if each.name in ("page-kv", "decompose"):
            done = tilewright("opt", before, "--passes", str(each), "--check", "0")
            assert done.stdout == expected, done.stderr
        before = after if after.exists() else before
    done = tilewright("opt", before, "--plan", "--check", "0")
    assert done.stdout == print_plan(make_plan(result.graph)), done.stderr
