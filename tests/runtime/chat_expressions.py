"""Every filter, test and function of a template, and operations on values: one a line."""

EXPRESSIONS = r"""
-3 | abs
n | attr('x')
[1, 2, 3] | batch(2, 'z') | list
'aB c' | capitalize
'x' | center(9)
't' | count
no | d(3)
'' | default('e', true)
{'b': 1, 'A': 2} | dictsort(true, 'value')
'<&"' | e
'<' | escape ~ '<'
1e6 | filesizeformat
9999 | filesizeformat(true)
'abc' | first
'1.5' | float
'x' | float(2)
'<' | e | forceescape
'%s: %05d' | format('a', 3)
'%(k)s' | format(k=[1])
items | groupby('k') | list
items | groupby('no', default=1) | list
'a\n\nb' | indent
'a\rb\u2028c' | indent('> ', true, true)
'12' | int
'0x1f' | int(0, 16)
[1, 'a', none] | join('-')
items | join(' ', attribute='k')
[1, 2] | join(7)
'abc' | last
'héé' | length
'ab' | list
'ÀB' | lower
{'a': 1} | items | list
items | map(attribute='k') | list
['a b', 'c'] | map('replace', ' ', '_') | join
['b', 'A'] | max
[3, 1] | min
[] | max
{'k': ['v' * 50, 'w' * 50]} | pprint
[5] | random
[0, 1] | reject | list
[1, 2] | reject('odd') | list
items | rejectattr('k', 'equalto', 2) | list
'aXbX' | replace('X', '--', 1)
5 | replace('5', '6')
'abc' | reverse
[1, 2] | reverse | list
2.567 | round(1, 'floor')
42.55 | round
'<' | safe
('<%s>' | safe) | format('<')
('<%s>' | e) | format('<' | e)
5 | format
('<b>' | safe) ~ '<'
('{}' | safe).format('<')
[0, 1] | select | list
items | selectattr('k') | list
[1, 2, 3] | slice(2, 'f') | list
['b', 'A', 'c'] | sort
items | sort(attribute='k', reverse=true)
3 | string
'<b>a</b> <!-- x -->y' | striptags
[1, 2] | sum
items | sum(attribute='k', start=1)
[[1], [2]] | sum(start=[])
'o\'neil x-y' | title
{'é': '<'} | tojson
[1, {'a': none}] | tojson(indent=1)
'x' | tojson(ensure_ascii=true)
'  x ' | trim
'xxaxx' | trim('x')
'a long text of words' | truncate(9)
'abcdef' | truncate(3, true, '')
['a', 'A', 1, 1.0] | unique | list
'ß' | upper
'a b/é' | urlencode
{'q': 'a b'} | urlencode
'see www.x.org (http://y.z/a)' | urlize(8, rel='me')
'a b, c' | wordcount
'aaa bbb ccc' | wordwrap(4)
'aaa-bbb ccc' | wordwrap(4, false, '|')
{'class': 'a', 'no': none} | xmlattr
3 is odd
4 is divisibleby 2
no is defined
none is none
's' is string
1 is number
1.0 is float
1 is integer
true is boolean
{} is mapping
'x' is sequence
[] is iterable
'A' is upper
2 in [1, 2]
'a' is in('abc')
1 is eq 1
1 is sameas 1
range is callable
'<' | e is escaped
'e' is filter
'odd' is test
range(3) | list
range(5, 0, -2) | list
dict(a=1, b=[2])
dict([('a', 1)], b=2)
dict.fromkeys(['a', 'b'], 0)
namespace(x=1).x
cycler('a', 'b').next()
7 // 2, 7 / 2, -7 % 3, 2 ** 10, 2 ** -1
'a' ~ 1 ~ none ~ 1.0
'ab' * 3, [0] * 2
'a' < 'b' <= 'c'
[1, 2][::-1]
'abcdef'[1:-1:2]
(1,)[0]
{'a': {'b': 3}}.a.b
'x' if no else 'y'
not no and 3 or 4
'a,b,,c'.split(',')
' a  b '.split()
'a.b.c'.rsplit('.', 1)
'ab'.join(['x', 'y', 'z'])
','.join(items | map(attribute='k') | map('string'))
'a\r\nb'.splitlines(true)
'abc'.find('c'), 'abcabc'.rfind('bc'), 'aaa'.count('a')
'xay'.strip('xy')
'a=b=c'.partition('='), 'a=b'.rpartition('=')
'{:>5}|{x!r}|{0[0]}'.format('ab', x='c')
'%5.1f%%' % 2.25
'%(a)s' % {'a': 1}
'Ab'.swapcase(), 'ß'.casefold()
'ab'.translate({97: 'x', 98: none}), 'ab'.translate(''.maketrans('a', '😀'))
'é'.encode() | string
'a\tb'.expandtabs(4)
'abc'.startswith(('a', 'b')), 'abc'.removesuffix('c'), '7'.zfill(3)
(10).to_bytes(2, 'big'), (5).bit_length()
{'a': 1}.get('b', 2), {'a': 1}.keys() | list, {'a': 1}.items() | list, [1, 1].count(1), [3].index(3)
strftime_now('%Y-%m-%d'), strftime_now('')
n.nothing is undefined
items[9] is defined
'x'.no is defined
0.1 + 0.2
"""
