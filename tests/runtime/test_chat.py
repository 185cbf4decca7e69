"""Chat templates render as transformers renders them, whatever their variables and messages."""

import enum
import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from tilewright.ir.errors import ArtifactError, RequestError

ASK = [
    {"role": "system", "content": "Be <brief>."},
    {"role": "user", "content": "Ça va?  "},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"x": [1]}}]},
    {"role": "tool", "content": "3", "name": None},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}"
    "{% endfor %}",
    "{% if tools is none %}no tools{% else %}{{ tools | tojson(indent=2) }}{% endif %}",
    "{% if documents is not none %}{{ documents[0].title }}{% endif %}{{ sep_token }}|{{ eot }}",
    "{% for m in messages if m.role != 'tool' %}{{ loop.index }}/{{ loop.length }} {{ m | tojson }}"
    "{% if not loop.last %};{% endif %}{% else %}none{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m | length %}"
    "{% endfor %}{{ ns.n }} {{ 7 // 2 * 3 % 5 ** 2 - 1 }} {{ 'a' ~ 3 ~ none ~ [1, 'b'] }}",
    "{%- macro turn(m, mark='#') -%}{{ mark }}{{ m.content or '' | trim }}{%- endmacro -%}"
    "{{ messages[1:3] | map(attribute='role') | join(', ') }}{{ turn(messages[1], mark='>') }}",
    "{% for m in messages %}{{ 'calls' if m.tool_calls is defined }}{{ 'content' in m }}"
    "{{ m.get('name', 'unnamed') }}{% if m.role == 'tool' %}{% break %}{% endif %}{% endfor %}",
    "{{ '%s has %05.1f' % ('x', 2) }}{{ '{:>6}|{a[0]}'.format('y', a=[1]) }}{{ 'ab' * 3 }}",
    "    {% if true %}\n  kept\n    {% endif %}\n{{ messages[0].content.split('<')[-1] | upper }}",
    "{% set turns = [] %}{% for m in messages %}{% set turns = turns + [m.role] %}{% endfor %}"
    "{{ turns }}{{ dict(a=1, **{'b': (2, 3)}) }}{{ messages | selectattr('content') | list }}",
    "{% generation %}{{ messages[-1].content }}{% endgeneration %}{{ add_generation_prompt }}",
    "{% for key, value in messages[2] | dictsort %}{{ key }}={{ value }},{% endfor %}{{ no }}",
    "{% for n in range(3) %}{% for k in range(n) recursive %}{{ n }}{{ k }} {% endfor %}"
    "{% endfor %}{% filter replace('a', 'bb') %}banana{% endfilter %}"
    "{{ 'x\ny' | indent(3, first=true) }}",
    "{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("more", [{}, {"tools": TOOLS, "documents": [{"title": "T"}], "eot": "!"}])
def test_as_transformers_renders(make_tokenizer, template, more):
    transformers = pytest.importorskip("transformers")
    tokenizer = make_tokenizer(template)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, bos_token="<bos>", eos_token="<eos>"
    )
    theirs.chat_template = template
    for add in (True, False):
        options = {"add_generation_prompt": add, **more}
        expected = theirs.apply_chat_template(ASK, tokenize=False, **options)
        assert tokenizer.render_chat(ASK, **options) == expected


def test_reasoning_goes_by_all_its_names(make_tokenizer):
    tokenizer = make_tokenizer("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}")
    for name in ("reasoning", "thinking", "reasoning_content"):
        message = {"role": "assistant", "content": "", name: "because "}
        assert tokenizer.render_chat([message]) == "because because "


# ---- several templates, parts, continuing ------------------------------------------------------


def test_templates_by_name(make_tokenizer):
    tokenizer = make_tokenizer({"default": "plain", "tool_use": "tools", "rag": "sources"})
    assert tokenizer.render_chat(ASK) == "plain"
    assert tokenizer.render_chat(ASK, tools=TOOLS) == "tools"
    assert tokenizer.render_chat(ASK, chat_template="rag", tools=TOOLS) == "sources"
    assert tokenizer.render_chat(ASK, chat_template="{{ messages | length }}") == "4"
    with pytest.raises(RequestError, match="the chat template cannot be read"):
        tokenizer.render_chat(ASK, chat_template="{% if %}")
    with pytest.raises(RequestError, match="none is the default\n  they are called a, b"):
        make_tokenizer({"a": "", "b": ""}).render_chat(ASK)
    with pytest.raises(ArtifactError, match="are no texts"):
        make_tokenizer({"default": ["x"]})


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages[0].content + '!' }}", "one\ntwo!"),
        ("{% set c = messages[0].content %}{{ c.strip() }}", "one\ntwo"),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }};{% endfor %}{% endfor %}",
         "one;two;"),
        ("{% macro show(content) %}{% for p in content %}{{ p['text'] }},{% endfor %}{% endmacro %}"
         "{{ show(messages[0].content) }}", "one,two,"),
        ("{% set c = messages[0]['content'] %}{% for p in c | list %}{{ p.type }} {% endfor %}",
         "text text "),
    ],
)  # fmt: skip
def test_content_in_parts(make_tokenizer, template, expected):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    given = [{"role": "user", "content": parts}]
    assert make_tokenizer(template).render_chat(given) == expected
    assert given[0]["content"] is parts
    assert parts[0] == {"type": "text", "text": "one"}


def test_what_is_no_message_is_named_at_once(make_tokenizer):
    image = {"type": "image_url", "image_url": {"url": "x"}}
    wrong = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
        {"content": "x"},
        {"role": "user", "content": 3},
        {"role": "user", "content": [{"type": "text"}]},
    ]
    with pytest.raises(RequestError) as caught:
        make_tokenizer("x").render_chat(wrong)
    message = str(caught.value)
    assert message.startswith("these are not messages")
    assert "message 0: part 1 of its content is of type 'image_url'" in message
    assert "message 1: it is {'content': 'x'}" in message
    assert "message 2: its content is 3" in message
    assert "message 3: part 0 of its content is {'type': 'text'}, which has no text" in message


@pytest.mark.parametrize("said", ["So", "So ", "So\n\n", "ends <eos>"])
@pytest.mark.parametrize("trim", ["", " | trim"])
def test_continuing_a_message_as_transformers_does(make_tokenizer, said, trim):
    transformers = pytest.importorskip("transformers")
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content" + trim + " }}</s>\n{% endfor %}"
    tokenizer = make_tokenizer(template)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer)
    theirs.chat_template = template
    messages = [*ASK[:2], {"role": "assistant", "content": said}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    expected = theirs.apply_chat_template(messages, tokenize=False, **options)
    assert tokenizer.render_chat(messages, **options) == expected
    with pytest.raises(RequestError, match="either continues the last message or begins"):
        tokenizer.render_chat(messages, continue_final_message=True)
    for template in ("{{ messages[0].content }}", "{{ messages[-1].content[1:] }}"):
        theirs.chat_template = template
        with pytest.raises(ValueError, match="the final message does not appear"):
            theirs.apply_chat_template(messages, tokenize=False, **options)
        with pytest.raises(RequestError, match="the last message cannot be continued"):
            make_tokenizer(template).render_chat(messages, **options)


# ---- data ----------------------------------------------------------------------------------------


class Role(enum.StrEnum):
    USER = "user"


@dataclass
class Message:
    role: str
    content: str
    weight: object = None


def test_other_forms_of_data_mean_the_same(make_tokenizer):
    tokenizer = make_tokenizer("{{ messages | tojson }}{{ n }}")
    expected = tokenizer.render_chat([{"role": "user", "content": "a", "k": 3}], n=2)
    given = [{"role": Role.USER, "content": np.str_("a"), "k": np.int64(3)}]
    assert tokenizer.render_chat(given, n=np.int8(2)) == expected
    assert tokenizer.render_chat(tuple(given), n=2) == expected
    objects = [Message("user", "a")]
    assert tokenizer.render_chat(objects, n=0) == '[{"role": "user", "content": "a"}]0'


def holds_itself():
    made = {"role": "user", "content": "x"}
    made["more"] = [made, made]
    return made


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([holds_itself()], "hold too much"),
        ([{"role": "user", "content": b"x"}], "hold something that is no data\n  .*type bytes"),
        ([{"role": "user", "content": "x", "f": print}], "of type builtin_function_or_method"),
        ([{"role": "user", "content": "x", "n": [[0] * 1024] * 1025}], "hold too much"),
        (itertools.repeat(ASK[0]), "a conversation is a list of messages"),
    ],
)
def test_what_is_no_data(make_tokenizer, messages, says):
    with pytest.raises(RequestError, match=says):
        make_tokenizer("x").render_chat(messages)


@pytest.mark.parametrize("name", ["tools", "documents"])
@pytest.mark.parametrize("value", ["f", [1], {"a": 1}, [print]])
def test_tools_and_documents_are_lists_of_dicts(make_tokenizer, name, value):
    with pytest.raises(RequestError, match=f"{name} is a list of dicts|no data"):
        make_tokenizer("x").render_chat(ASK, **{name: value})


# ---- control tokens in messages ------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    ["a<eos>b", "<eos>", "<bos><eos>", "<<eos>>", "<e<eos>os>", "\ufdd0<eos>\ufdd1", "plain"],
)  # fmt: skip
def test_control_tokens_stay_text_when_asked(make_tokenizer, said):
    tokenizer = make_tokenizer(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    messages = [{"role": "user", "content": said}]
    seen = said.replace("\ufdd0", "").replace("\ufdd1", "")
    text, tokens = tokenizer.encode_chat(messages, sanitize_control_tokens=True)
    assert text == f"<bos>{seen}<eos>"
    assert tokens == [257, *seen.encode(), 256]
    plain_text, plain = tokenizer.encode_chat(messages)
    assert plain_text == f"<bos>{said}<eos>"
    assert plain.count(256) == 1 + said.count("<eos>")


def test_a_template_that_cuts_texts_makes_no_control_token(make_tokenizer):
    """The marks around a token may end up apart; the text beside them must not join to one."""
    tokenizer = make_tokenizer("{{ messages[0].content.split('|')[0] }}os>{{ tools | tojson }}")
    messages = [{"role": "user", "content": "<e|<eos>"}]
    _, tokens = tokenizer.encode_chat(
        messages, sanitize_control_tokens=True, tools=[{"name": "<bos>"}]
    )
    assert 257 not in tokens
