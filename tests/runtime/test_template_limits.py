"""Templates that never end, recurse or grow end in an error soon, and within bounded memory."""

import json
import subprocess
import sys

import pytest

from tilewright.runtime.engine import chat_template
from tilewright.runtime.engine.chat_template import (
    MAX_TEMPLATE_CHARS,
    ChatTemplate,
    TemplateFailed,
)

GROW = [
    "{{ 'x' * 999999999 }}",
    "{{ 999999999 * [1, 2] }}",
    "{{ 7 ** 99999999 }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%.*f' % (99999999, 1.0) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:>{w}}'.format(1, w=999999999) }}",
    "{{ '{0:>99999999}'.format_map({'0': 1}) }}",
    "{{ 'x'.center(999999999) }}",
    "{{ 'x'.zfill(999999999) }}",
    "{{ 'x'['ljust'](999999999) }}",
    "{{ ('x\\t' * 99999).expandtabs(99999) }}",
    "{{ (3).to_bytes(999999999) }}",
    "{{ 'x' | center(999999999) }}",
    "{{ ('x\n' * 99999) | indent(99999) }}",
    "{{ 'x\ny' | indent('z' * 20000000) }}",
    "{{ 'x' | format(1) | replace('', 'y' * 19999999) }}",
    "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "{{ ('x' * 99999) | join('y' * 99999) }}",
    "{{ range(99999) | map('string') | join('y' * 99999) }}",
    "{{ ('y' * 99999).join('x' * 99999) }}",
    "{{ ('x ' * 99999) | wordwrap(2, true, 'y' * 99999) }}",
    "{{ '%*d' | format(999999999, 1) }}",
    "{{ [1] | batch(999999999, 'x') | list }}",
    "{{ [1] | slice(999999999) | list }}",
    "{{ [[1]] | tojson(indent=999999999) }}",
    "{{ 1.5 | round(999999999, 'ceil') }}",
    "{% filter center(999999999) %}x{% endfilter %}",
    "{{ ['x'] | map('center', 999999999) | list }}",
    "{% for i in range(9) %}{{ 'x' * 9999999 }}{% endfor %}",
    "{% set n = namespace(x='xy') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    "{{ n.x }}",
    "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set t %}{{ n.x }}{{ n.x }}"
    "{% endset %}{% set n.x = t %}{% endfor %}",
    "{% set n = namespace(x=1) %}{% for i in range(9999) %}{% set n.x = (n.x,) %}{% endfor %}"
    "{{ {n.x: 1} }}",
    "{% set n = namespace(x='{0}{0}') %}{% for i in range(99) %}{% set n.x = n.x.format(n.x) %}"
    "{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = '%s%s' % (n.x, n.x) %}"
    "{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = dict(a=n.x, b=n.x) %}"
    "{% endfor %}{{ n.x | tojson }}",
    "{{ ([[1] * 999] * 9999) | sum(start=[]) | length }}",
    "{{ '%(a(b))999999999d' % {'a(b)': 1} }}",
    "{{ ['%999999999d'] | format(1) }}",
    "{{ '%999999999d'.encode() % 1 }}",
    "{% for i in [1] %}{{ 'x'.center(999999999) }}{% endfor %}",
    "{{ ('x' * 9999) | replace(old='x', new='y' * 99999, count=99999) }}",
    "{{ ('x\r' * 29999) | indent('y' * 29999) }}",
    "{{ [1] | batch(linecount=999999999, fill_with='x') | list }}",
    "{{ ('y' * 99999).join(range(99999) | map('string')) }}",
    "{{ ('x' * 29999).translate(['y' * 99999] * 130) }}",
    "{{ ('www.a.bc ' * 19999) | urlize(target='x' * 59999) }}",
    "{{ ('<!---->' * 1999999) | striptags }}",
    "{{ ('x' * 9999999) | wordwrap(1) }}",
    "{{ ('ab ' * 9999999).split() }}",
    "{{ ('ab\n' * 9999999).splitlines() }}",
    "{{ ('ab ' * 9999999) | wordcount }}",
    "{{ ('é' * 29999999) | select | list }}",
    "{{ ('é' * 9999999) | urlencode }}",
    "{% for c in 'é' * 29999999 %}{{ loop.length }}{% break %}{% endfor %}",
    "{{ (('{' ~ '{') * 7999999).format() }}",
    "{{ strftime_now('%c' * 9999999) }}",
    "{{ ('ab' * 9999999).strip('c' * 9999999 ~ 'ab') }}",
    "{{ ('a' * 9999999).rfind('ab' ~ 'a' * 4999999) }}",
    "{{ 'x'.join(('a' * 9999999).rpartition('ab' ~ 'a' * 4999999)) }}",
    "{{ ('aé' * 99999).encode('punycode') }}",
    "{{ 'é'.encode('ascii', 'namereplace') * 9999999 }}",
    "{% set d = dict.fromkeys(range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1)) %}",
    "{% set d = {}.fromkeys(range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1)) %}",
    "{% for i in range(99999) %}{% for j in range(99) %}{% set x = [] %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(x) %}{{ x }}{{ f(x ~ x) }}{% endmacro %}{{ f('x') }}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{{ range(999999) }}",
    "{{ " + "(" * 999 + "1" + ")" * 999 + " }}",
    "{% if true %}" * 200 + "{% endif %}" * 200,
    "{{ " + "not " * 9999 + "1 }}",
    "{{ 1" + " + 1" * 20000 + " }}",
    "x" * (MAX_TEMPLATE_CHARS + 1),
]
FAIL = [
    "{{ 1 // 0 }}",
    "{{ 1 % 0 }}",
    "{{ 1.5 / 0 }}",
    "{{ 'é'.encode('ascii') }}",
    "{{ '{'.format(1) }}",
    "{{ '%d' % 'x' }}",
    "{{ [1] < ['a'] }}",
    "{{ {[]: 1} }}",
    "{{ namespace(1, 2) }}",
    "{{ strftime_now(3) }}",
    "{{ [namespace()] | tojson }}",
    "{{ namespace(_x=1) }}",
    "{% set n = namespace() %}{% set n.__x = 1 %}",
    "{% set d = {} %}{{ dict.update(d, {'a': 1}) }}",
    "{{ raise_exception('x' * 9999999) }}",
    "{{ 2.0 ** 99999 }}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% import 'x' as y %}",
    "{{ raise_exception() }}",
    "{{ messages | no_such_filter }}",
    "{{ lipsum(n=9) }}",
    "{{ ('x' * 9)['__class__'].__mro__[1] }}",
    "{{ '{0.__class__.__mro__}'.format('x') }}",
]


RUN = """
import json, re, resource, sys
from tilewright.runtime.engine import chat_template
from tilewright.runtime.engine.chat_template import ChatTemplate, TemplateFailed
chat_template.MAX_SECONDS = 0.05
for number, text in enumerate(json.load(sys.stdin)):
    try:
        ChatTemplate(text).render({"messages": [{"role": "user", "content": "x"}]})
    except TemplateFailed as error:
        print(number, "failed", str(error)[:60])
    else:
        print(number, "rendered")
chat_template._process.close()
# of this process not ru_maxrss, which begins with that of the process that started it
own = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())
peaks = int(own[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print("peak", max(peaks) * 1024)
"""


@pytest.mark.parametrize("texts", [GROW, FAIL], ids=["grow", "fail"])
def test_every_one_ends_in_an_error_within_bounded_memory(texts):
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(texts), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *lines, peak = done.stdout.splitlines()
    ends = [f"{texts[int(n)][:80]}: {line}" for n, _, line in (x.partition(" ") for x in lines)]
    assert [end for end in ends if end.endswith("rendered")] == []
    assert len(lines) == len(texts)
    assert int(peak.split()[1]) < 500 << 20


def test_loops_that_never_end(monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.2)
    loops = "{% for a in range(99999) %}" * 3
    bodies = [loops + body for body in ("", "{{ m }}", "{% if 'a' in x %}{% endif %}")]
    bodies.append("{{ range(9999) | groupby('b' * 9999999) }}")
    bodies.append("{{ range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1) | unique | list | length }}")
    for body in bodies:
        text = "{% set x = 'b' * 999999 %}" + body + "{% endfor %}" * body.count("range(99999) %}")
        with pytest.raises(TemplateFailed, match=r"it has run for 0\.2 seconds"):
            ChatTemplate(text).render({"m": "y"})


def test_the_process_that_renders_is_started_again():
    template = ChatTemplate("{{ x }}")
    assert template.render({"x": "a"}) == "a"
    chat_template._process._running.kill()
    chat_template._process._running.wait()
    assert template.render({"x": "b"}) == "b"


FORKS = """
import os
from tilewright.runtime.engine.chat_template import ChatTemplate
template = ChatTemplate("{{ x }}")
if child := os.fork():
    rendered = [template.render({"x": n}) for n in range(99)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rendered == [str(n) for n in range(99)]
else:
    assert [template.render({"x": -n}) for n in range(99)] == [str(-n) for n in range(99)]
"""


def test_a_forked_process_has_one_of_its_own():
    command = [sys.executable, "-W", "error", "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_caller_gives_is_not_counted():
    """A long conversation, and a template that goes over it several times."""
    messages = [{"role": "user", "content": "a b\n" * 50_000} for _ in range(20)]  # 4 MB
    text = (
        "{% for m in messages %}{% set c = m.content.strip() %}{{ c.split('</think>')[-1] | trim }}"
        "{{ '<end>' }}{% endfor %}"
    )
    rendered = ChatTemplate(text).render({"messages": messages})
    assert rendered == "".join(m["content"].strip() + "<end>" for m in messages)
