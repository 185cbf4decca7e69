"""A tiny language model in a folder, and the command line as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..models import tiny

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
)


def byte_tokenizer():
    """A transformers tokenizer with a token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: i for i, text in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A Llama of two layers with random weights and a context of 1024 tokens, and a tokenizer."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny.make("llama").save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def command(tmp_path):
    """run(*args, env=..., stdin=...) -> CompletedProcess of `python -m tilewright.cli`."""

    def run(*args, env=None, stdin=b"") -> subprocess.CompletedProcess:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tilewright.cli",
                *(a if a.__class__ is bytes else str(a) for a in args),
            ],
            capture_output=True,
            input=stdin,
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", **(env or {})},
            timeout=600,
        )
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        return done

    return run


def is_one_screen(done: subprocess.CompletedProcess, says: str) -> bool:
    """Whether a command failed as it should: code 1, a short message, no traceback."""
    assert done.returncode == 1, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "InternalError" not in done.stderr
    assert len(done.stderr.splitlines()) < 25
    return True
