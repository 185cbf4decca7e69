"""What an artifact says of its model: the form of facts.json, checked before use."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..ir.errors import ArtifactError, listed, shown
from ..runtime.artifact import Artifact

# A form: a type, types of which one must fit, a list of a form, a table {str: form}, or fields.
_PASS = {
    "pass": str,
    "changed": bool,
    "ms": (float, int),
    "nodes": int,
    "fired": {str: int},
    "declined": [{"rule": str, "reason": str, "count": int}],
    "notes": [str],
}
FORM = {
    "architecture": str,
    "source": (str, type(None)),
    "context_len": int,
    "eos_ids": [int],
    "num_layers": int,
    "hidden_size": int,
    "vocab_size": int,
    "dtype": str,
    "fallback_ops": int,
    "special_tokens": {str: str},
    "chat_templates": {str: str},
    "seconds": {str: (float, int)},
    "libraries": {str: (str, type(None))},
    "passes": [_PASS],
    "notes": [str],
}
MODULE_FORM = {
    "module": str,
    "libraries": {str: (str, type(None))},
    "programs": [{"passes": [_PASS], "fallback_ops": int}],
}


def is_language_model(facts: Mapping[str, Any]) -> bool:
    """Whether these are the facts of a language model, and not of another program."""
    return "context_len" in facts or "architecture" in facts


def check_artifact(artifact: Artifact, path: Path) -> None:
    """`check_facts` of what the artifact holds: a module or a language model, else nothing."""
    if artifact.parameters is not None:
        check_facts(artifact.facts, path, MODULE_FORM, len(artifact.programs))
    elif is_language_model(artifact.facts):
        check_facts(artifact.facts, path)


def check_facts(
    facts: Mapping[str, Any], path: Path, form: Mapping[str, Any] = FORM, num_programs: int = 1
) -> None:
    """ArtifactError lists every fact that is missing or not as `form`, a language model's, says."""
    problems = list(_misfits("", facts, form))
    if not problems and len(facts.get("programs", range(num_programs))) != num_programs:
        problems.append(f"it tells of {len(facts['programs'])} programs, there are {num_programs}")
    if not problems and facts.get("context_len", 1) < 1:
        problems.append(f"context_len is {facts['context_len']}")
    if problems:
        raise ArtifactError(
            "the artifact is damaged",
            where=f"{path}, facts.json",
            facts=listed(problems),
            fix="copy it again, or build it again",
        )


def _misfits(name: str, value: Any, form: Any) -> Iterator[str]:
    # by type, not isinstance: a bool is an int in Python, and not one here
    kinds = form if isinstance(form, tuple) else (form if isinstance(form, type) else type(form),)
    if type(value) not in kinds:
        yield f"{name or 'it'} is {shown(value)}"
    elif isinstance(form, list):
        for index, item in enumerate(value):
            yield from _misfits(f"{name}[{index}]", item, form[0])
    elif isinstance(form, dict):
        dot = f"{name}." if name else ""
        fields = dict.fromkeys(value, form[str]) if str in form else form
        for key, inner in fields.items():
            if key in value:
                yield from _misfits(f"{dot}{key}", value[key], inner)
            else:
                yield f"{dot}{key} is missing"
