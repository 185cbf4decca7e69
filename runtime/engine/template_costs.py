"""Operations of templates that make, or work, far more than they are given: bounded beforehand.

The unit is the budget's, a character made. Where an operation takes more steps than it makes
characters, they are counted at the speed of what takes them: nothing comes back from a call into
C before it is done, so what has no bound here must be linear in what it is given.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .template_budget import MAX_INT_BITS, SLOT_CHARS, TooMuch, counted, current

MAX_ODD_KEYS = 1000  # of one dict, that are no texts: their hashes can be chosen to be equal
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # of str.splitlines


def need_for_operator(operator: str, left: Any, right: Any) -> None:
    """Raise before `left operator right` would make more than is left."""
    budget = current()
    if operator == "*":
        for text, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(text, (str, bytes, list, tuple)):
                budget.need(budget.size(text) * max(times, 0))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * right > MAX_INT_BITS:
            raise TooMuch("it makes a number too large to write out")
    elif operator == "%" and isinstance(left, (str, bytes)):
        need_for_percent(left if isinstance(left, str) else left.decode("latin-1"), right)


def need_for_percent(form: str, values: Any) -> None:
    """Raise before `form % values` would make more than is left."""
    if re.search(r"%\([^()]*\(", form):
        raise TooMuch("it formats by a name with parentheses")
    specs = re.findall(r"%(?:\([^)]*\))?([-#0 +]*[\d.*]*)", form)
    if any("*" in spec for spec in specs):
        raise TooMuch("it formats to a width that it computes")
    widths = sum(_digits(spec) for spec in specs)
    budget = current()
    budget.need(len(form) + widths + len(specs) * (SLOT_CHARS + budget.size(values)))


def need_for_format(spec: str) -> None:
    """Raise before a field of str.format would make more than is left."""
    current().need(_digits(spec))


def need_for_call(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise before a filter, or a method of a value, would make or take more than is left.

    args[0] is what the filter or method belongs to.
    """
    cost = _COSTS.get(name)
    if cost is None:
        return
    try:
        chars = cost(*args, **named)
    except TypeError as error:  # it would say so itself, or we do not know what it would do
        raise TooMuch(f"what {name!r} makes of its arguments is not known: {error}") from None
    current().need(chars)


def checked_keys(keys: Iterable[Any]) -> Iterator[Any]:
    """Keys of a dict that is made, of which few may be something else than texts."""
    return (key for key, _ in checked_pairs((key, None) for key in keys))


def checked_pairs(pairs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """The same for what a dict is made of."""
    odd = 0
    for key, value in counted(pairs, SLOT_CHARS):
        odd += not isinstance(key, str)
        if odd > MAX_ODD_KEYS:
            raise TooMuch(f"it makes a dict with more than {MAX_ODD_KEYS} keys that are no texts")
        yield key, value


# ---- bounds ------------------------------------------------------------------------------------


def _digits(spec: str) -> int:
    return sum(int(number[:20]) for number in re.findall(r"\d+", spec))


def _chars(value: Any) -> int:
    """Of a value written out."""
    return value.bit_length() // 3 + 2 if isinstance(value, int) else current().size(value)


def _number(value: Any) -> int:
    return max(0, value) if isinstance(value, int) else 0  # else the operation refuses it


def _times(factor: int) -> Callable[..., int]:
    return lambda value, *_, **__: factor * _chars(value)


def _square(value: Any, *_: Any, **__: Any) -> int:
    """Of what copies the rest of a text at each step: quick, but there are many."""
    return _chars(value) ** 2 >> 10


def _elements(value: Any, *_: Any, **__: Any) -> int:
    """A text taken apart: each of its characters becomes a text."""
    return len(value) * SLOT_CHARS if isinstance(value, (str, bytes)) else 0


def _pieces(text: Any, sep: Any = None, maxsplit: int = -1) -> int:
    return SLOT_CHARS * (len(text) // 2 + 1 if sep is None else text.count(sep) + 1)


def _lines(text: Any) -> int:
    return sum(map(text.count, _LINE_ENDS)) + 1 if isinstance(text, str) else len(text) + 1


def _backwards(text: Any, part: Any, *_: Any) -> int:
    # a search from the end compares the whole part at each place
    return len(text) * len(part) >> 5


def _stripped(text: Any, chars: Any = None) -> int:
    return _chars(text) * len(chars or "") >> 4


def _replaced(value: Any, old: Any, new: Any, count: Any = None) -> int:
    return (_chars(value) // max(1, _chars(old)) + 1) * _chars(new)


def _joined(one: Any, d: Any = "", attribute: Any = None) -> int:
    # "sep".join(values), or values | join(sep), where sep may be no text
    d = d if hasattr(d, "__len__") else str(d)
    sep, values = (one, d) if isinstance(one, (str, bytes)) else (d, one)
    return max(len(one) * len(d), len(values) * _chars(sep)) + _chars(values)


def _translated(text: str, table: Any) -> int:
    values = table.values() if isinstance(table, dict) else table
    texts = [len(v) for v in values if isinstance(v, str)]
    return len(text) * max(texts, default=1)


def _indented(text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> int:
    return _lines(text) * (len(width) if isinstance(width, str) else _number(width))


def _wrapped(
    text: Any,
    width: Any = 79,
    break_long_words: Any = True,
    wrapstring: Any = None,
    break_on_hyphens: Any = True,
) -> int:
    return _square(text) + len(text) * len(wrapstring or "\n")


def _linked(value: Any, *args: Any, **named: Any) -> int:
    more = sum(map(_chars, (*args, *named.values())))  # written beside each link, or looked for
    return _square(value) + _chars(value) * (64 + more)


def _coded(text: Any, encoding: str = "utf-8", errors: str = "strict") -> int:
    # some codecs take the square, and some ways to write errors a name for each character
    plain = errors == "strict" and encoding.lower() in ("utf-8", "utf8", "ascii", "latin-1")
    return 4 * len(text) if plain else 16 * len(text) ** 2


def _summed(iterable: Any, attribute: Any = None, start: Any = 0) -> int:
    # lists joined one by one are copied again each time
    lists = 0 if isinstance(start, (int, float)) else (len(iterable) + 1) ** 2 * SLOT_CHARS
    return lists + _elements(iterable)


# name -> a bound in characters, from the arguments of the filter or method
_COSTS: dict[str, Callable[..., int]] = {
    "center": lambda text, width=80, fill=" ": _number(width),
    "ljust": lambda text, width, fill=" ": _number(width),
    "rjust": lambda text, width, fill=" ": _number(width),
    "zfill": lambda text, width: _number(width),
    "expandtabs": lambda text, tabsize=8: len(text) * _number(tabsize),
    "to_bytes": lambda number, length=1, *_, **__: _number(length),
    "replace": _replaced,
    "join": _joined,
    "translate": _translated,
    "indent": _indented,
    "wordwrap": _wrapped,
    "urlize": _linked,
    "striptags": _square,
    "unescape": _times(8),
    "batch": lambda value, linecount, fill_with=None: (
        _number(linecount) * SLOT_CHARS + _elements(value)
    ),
    "slice": lambda value, slices, fill_with=None: _number(slices) * SLOT_CHARS + _elements(value),
    "round": lambda value, precision=0, method="common": _number(abs(precision)) ** 2,
    "sum": _summed,
    "pprint": _times(64),
    "urlencode": _times(64),
    "title": _times(8),
    "wordcount": _times(8),
    **dict.fromkeys(("escape", "e", "forceescape", "xmlattr"), _times(6)),
    **dict.fromkeys(("upper", "lower", "capitalize", "swapcase", "casefold", "hex"), _times(3)),
    **dict.fromkeys(("list", "sort", "groupby"), _elements),
    **dict.fromkeys(("strip", "lstrip", "rstrip", "trim"), _stripped),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _backwards),
    **dict.fromkeys(("encode", "decode"), _coded),
    "split": _pieces,
    "rsplit": lambda text, sep=None, maxsplit=-1: _pieces(text, sep) + _backwards(text, sep or ""),
    "splitlines": lambda text, keepends=False: _lines(text) * SLOT_CHARS,
    "maketrans": lambda _, keys, *__: _elements(keys),
    "isdisjoint": lambda keys, other: len(keys) * len(other),
    "strftime": lambda form: len(form) << 8,  # the longest that Python lets one become
}
