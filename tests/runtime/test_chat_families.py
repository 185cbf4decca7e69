"""Templates in the manner of model families render as transformers renders them, or both refuse."""

import pytest

from tilewright.ir.errors import RequestError
from tilewright.runtime.engine.chat_template import ChatTemplate

from .chat_expressions import EXPRESSIONS
from .chat_families import FAMILIES

transformers = pytest.importorskip("transformers")

SYSTEM = {"role": "system", "content": ' Be <brief> & "kind".\n'}
USER = {"role": "user", "content": "Ça va?  {{ 1 }} </think> 😀\r\n"}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nOui.\n"}
PLAIN = {"role": "assistant", "content": " Oui. "}
CALL = {
    "role": "assistant",
    "content": None,
    "reasoning": "Look it up.",
    "tool_calls": [
        {"id": "abcdefghi", "type": "function",
         "function": {"name": "f", "arguments": {"x": [1.5, None, "é"], "y": True}}}
    ],
}  # fmt: skip
RESULT = {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "[3]"}
TOOLS = [
    {"type": "function",
     "function": {
         "name": "f",
         "description": "Gives <x>.",
         "parameters": {
             "type": "object",
             "properties": {
                 "x": {"type": "array", "items": {"type": "number"}},
                 "y": {"type": ["string", "null"], "nullable": True},
                 "z": {"type": "object", "additionalProperties": {"type": "integer"}},
             },
             "required": ["x"],
         },
     }}
]  # fmt: skip
CONVERSATIONS = {
    "question": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, USER],
    "ends with an answer": [USER, PLAIN],
    "calls": [SYSTEM, USER, CALL, RESULT, PLAIN, USER],
    "calls again": [USER, CALL, RESULT, CALL, RESULT],
    "wrong order": [USER, USER, ANSWER],
    "empty texts": [{"role": "system", "content": ""}, {"role": "user", "content": ""}],
    "odd roles": [{"role": "critic", "content": "No."}, RESULT],
}
OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False, "tools": TOOLS, "date_string": "26 Jul 2024"},
    {
        "add_generation_prompt": True,
        "documents": [{"title": "T", "text": "a long text of it"}, {"title": "U"}],
        "enable_thinking": False,
        "controls": {"length": "long"},
        "reasoning_effort": "high",
        "tools": [],
    },
]


@pytest.mark.parametrize("family", FAMILIES)
def test_as_transformers_renders(make_tokenizer, family):
    template = FAMILIES[family]
    tokenizer = make_tokenizer(template)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, bos_token="<bos>", eos_token="<eos>"
    )
    theirs.chat_template = template
    rendered = 0
    for name, messages in CONVERSATIONS.items():
        for options in OPTIONS:
            try:
                expected = theirs.apply_chat_template(messages, tokenize=False, **options)
            except Exception:  # noqa: BLE001  jinja2's errors, and Python's: str + None
                with pytest.raises(RequestError, match="the chat template refused the messages"):
                    tokenizer.render_chat(messages, **options)
            else:
                rendered += 1
                assert tokenizer.render_chat(messages, **options) == expected, name
    assert rendered >= 6, "a template that refuses everything tests nothing"


def test_every_filter_test_and_function():
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    values = {"items": [{"k": 2, "l": "b"}, {"k": 1}], "n": {"x": 1}}
    for expression in EXPRESSIONS.strip().split("\n"):
        template = "{{ " + expression + " }}{% for i in [0] %}{{ " + expression + " }}{% endfor %}"
        expected = utils._compile_jinja_template(template).render(**values)
        assert ChatTemplate(template).render(values) == expected, expression
