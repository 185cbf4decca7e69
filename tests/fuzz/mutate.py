"""Damage, the same for the same seed: to bytes, and to what JSON says."""

import json
import random
from typing import Any

NUMBERS = [0, -1, 1, 2**31, 2**40, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308]
TEXTS = ["", "x", "x" * 5000, "\0", "../../etc/passwd", "é\ud800", "{{", "$(id)", "[" * 200]
OTHERS = [None, True, False, [], {}, [[]], {"a": {}}, [None] * 3]


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, pieces cut out, doubled, overwritten, or the end missing."""
    result = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at, kind = rng.randrange(len(result) + 1), rng.randrange(5)
        if kind == 0 and at < len(result):
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del result[at : at + rng.choice([1, 4, 50])]
        elif kind == 2:
            result[at:at] = result[at : at + rng.choice([1, 8, 100])]
        elif kind == 3:
            result[at : at + 8] = rng.randbytes(8)
        elif rng.random() < 0.3:
            del result[at:]
    return bytes(result)


def damaged_value(value: Any, rng: random.Random) -> Any:
    """`value`, plain data, with something in it replaced, missing, twice or elsewhere."""
    value = _copy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        places = list(_places(value))
        if not places:
            return _copy(rng.choice(OTHERS))
        holder, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other, at = rng.choice(places)
            holder[key] = _copy(other[at])
        elif kind == 2 and isinstance(holder[key], (int, float)):
            holder[key] = rng.choice([holder[key] + 1, -holder[key], holder[key] * 1000, 0])
        elif kind == 3 and isinstance(holder, list):
            holder.insert(key, _copy(holder[key]))
        elif kind == 4 and isinstance(holder[key], list):
            rng.shuffle(holder[key])
        else:
            holder[key] = _copy(rng.choice(rng.choice([NUMBERS, TEXTS, OTHERS])))
    return value


def damaged_json(value: Any, rng: random.Random) -> bytes:
    """The text of `value`, damaged in what it says or in how it is written."""
    if rng.random() < 0.8:
        value = damaged_value(value, rng)
    text = json.dumps(value)
    kind = rng.randrange(12)
    if kind == 0:
        text = text.replace(":", ": NaN, " + text[1 : text.find(":")] + ":", 1)
    elif kind == 1:
        depth = rng.choice([100, 100_000])
        text = '{"a":' * depth + text + "}" * depth
    elif kind == 2:
        text = text.replace("}", ', "name": 1, "name": 2}', 1)
    data = text.encode("utf-8", "surrogatepass")
    return damaged_bytes(data, rng) if kind in (3, 4) else data


def _places(value: Any):
    """(container, key) of everything in `value`."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys) if isinstance(value, (dict, list)) else ():
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))
