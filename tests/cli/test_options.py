"""Options of the verbs: ranges are those of SamplingParams, and results are whole in --json."""

import inspect
import json
import os
import typing

import pytest
from typer.testing import CliRunner

from tilewright.api import cache
from tilewright.cli.app import VERBS, app
from tilewright.cli.generate import as_data, messages_of
from tilewright.ir.errors import RequestError
from tilewright.runtime.engine.outputs import CompletionOutput, Logprob, RequestOutput
from tilewright.runtime.engine.sampling_params import SamplingParams

run = CliRunner().invoke
EDGES = {
    "top-p": ["-0.1", "1.01", "nan"],
    "min-p": ["-0.1", "1.1", "nan"],
    "temperature": ["-1", "101", "nan"],
    "presence-penalty": ["-2.1", "2.1"],
    "frequency-penalty": ["-2.1", "2.1"],
    "repetition-penalty": ["0", "-1", "101"],
    "n": ["0", "129"],
    "logprobs": ["-1", "21"],
    "prompt-logprobs": ["-1", "21"],
    "max-tokens": ["0"],
    "top-k": ["-2"],
    "seed": [str(2**63)],
}
WHOLE = ("n", "logprobs", "prompt-logprobs", "max-tokens", "top-k", "seed")


@pytest.mark.parametrize("name", EDGES)
def test_what_sampling_refuses_is_a_usage_error(name):
    """Refused when the line is read, before any model is opened."""
    for value in EDGES[name]:
        number = int(value) if name in WHOLE else float(value)
        with pytest.raises(RequestError):
            SamplingParams(**{name.replace("-", "_"): number})
        done = run(app, ["generate", "no-such-model", "hi", "--json", f"--{name}={value}"])
        assert done.exit_code == 2, (value, done.output)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_is(verb):
    for name, parameter in inspect.signature(VERBS[verb]).parameters.items():
        _, info = typing.get_args(parameter.annotation)
        assert info.help, f"{verb}: {name}"


def test_results_as_data():
    tokens = [{5: Logprob(-0.5, 1, "a"), 6: Logprob(-1.5, None, "b")}]
    outputs = [
        CompletionOutput(0, "a", (5,), -0.5, tokens, "stop", "END"),
        CompletionOutput(1, "b", (6,), None, None, "length", None),
    ]
    scores = [None, {2: Logprob(-2.0, 3, "c")}]
    data = as_data(RequestOutput("0", "ab", [1, 2], outputs, prompt_logprobs=scores))
    assert (data["text"], data["stop_reason"], data["prompt_tokens"]) == ("a", "END", 2)
    assert [one["text"] for one in data["outputs"]] == ["a", "b"]
    assert data["logprobs"][0][1] == {
        "token_id": 6,
        "logprob": -1.5,
        "rank": None,
        "decoded_token": "b",
    }
    assert "logprobs" not in data["outputs"][1]
    assert json.loads(json.dumps(data)) == data
    assert data["prompt_logprobs"] == [
        None,
        [{"token_id": 2, "logprob": -2.0, "rank": 3, "decoded_token": "c"}],
    ]
    alone = as_data(RequestOutput("0", "ab", [1, 2], outputs[:1]))
    assert not {"outputs", "prompt_logprobs"} & alone.keys()


@pytest.mark.parametrize("name", ["--logprobs", "--prompt-logprobs"])
def test_log_probabilities_have_no_other_form_than_json(name):
    done = run(app, ["generate", "no-such-model", "hi", name, "1"])
    assert done.exit_code == 1
    assert f"{name} is shown with --json only" in done.stderr


def test_chat_takes_what_run_takes_but_the_prompt():
    taken = {verb: dict(inspect.signature(VERBS[verb]).parameters) for verb in ("chat", "run")}
    assert taken["run"].pop("prompt").default is None
    assert taken["chat"] == taken["run"]


def test_options_reach_sampling_and_the_model(monkeypatch):
    """Each under the name that it has there; what is no option of the verb stays a default."""
    opened = {}

    def open_llm(model, progress, **given):
        opened.update(given, model=model, threads=os.environ["TILEWRIGHT_THREADS"])

    asked = []
    monkeypatch.setenv("TILEWRIGHT_THREADS", "1")
    monkeypatch.setattr("tilewright.api.language_model.LLM", open_llm)
    monkeypatch.setattr("tilewright.cli.chat.converse", lambda *given: asked.append(given))
    line = "chat a.zip -q --system s --min-p .5 --stop x --stop y --threads 3 --max-model-len 9"
    assert run(app, line.split()).exit_code == 0
    params = SamplingParams(max_tokens=512, temperature=0, min_p=0.5, stop=("x", "y"))
    assert asked == [(None, params, "s", True)]
    wanted = dict(model="a.zip", threads="3", max_model_len=9)
    assert opened == {**wanted, "dtype": "auto", "target": "auto"}


def test_a_system_message_comes_first():
    assert [m["role"] for m in messages_of("hi", "Be kind.")] == ["system", "user"]
    assert [m["role"] for m in messages_of("hi")] == ["user"]


# ---- the cache -------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Three entries, each 1000 bytes larger and used later than the one before."""
    monkeypatch.setattr(cache, "cache_dir", lambda: tmp_path)
    for number, key in enumerate(("aaa1", "aab2", "bbb3"), 1):
        folder = tmp_path / "artifacts" / key
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"x" * 1000 * number)
        os.utime(folder, (number, number))
    (tmp_path / "artifacts" / ".unfinished").mkdir()
    return tmp_path / "artifacts"


def test_list_names_what_is_kept_and_what_is_damaged(kept):
    rows = json.loads(run(app, ["list", "--json"]).stdout)
    assert [(row["key"], row["bytes"]) for row in rows] == [
        ("bbb3", 3000),
        ("aab2", 2000),
        ("aaa1", 1000),
    ]
    assert {row["model"] for row in rows} == {"damaged"}
    text = run(app, ["list"]).stdout
    assert "bbb3" in text
    assert "3 compiled models, 5.9 KiB, in " in text


def test_prune_by_key_and_by_size(kept):
    assert run(app, ["prune"]).exit_code == 2
    assert run(app, ["prune", "aaa1", "--max-bytes", "0"]).exit_code == 2
    for unknown in ("aa", "zzz", "../aaa1"):  # two have it, none has it
        done = run(app, ["prune", unknown])
        assert done.exit_code == 1
        assert f"{unknown}: not the key of one compiled model" in done.stderr
    assert run(app, ["prune", "aaa"]).stdout == "removed 1, 1000 B\n"
    assert sorted(path.name for path in kept.iterdir()) == [".unfinished", "aab2", "bbb3"]
    removed = json.loads(run(app, ["prune", "--max-bytes", "3500", "--json"]).stdout)["removed"]
    assert [row["key"] for row in removed] == ["aab2"]
    assert (kept / "bbb3").is_dir()
