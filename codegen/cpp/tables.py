"""Generated tables of a library: its kernels, and fractions of a turn for sine and cosine."""

from collections.abc import Sequence
from functools import lru_cache

_BITS = 320  # of 1 / (2 pi): 128 for the largest float's whole turns, the rest to keep its fraction


def kernel_table(names: Sequence[str]) -> str:
    """The source of the table that maps a kernel's index to its functions."""
    run = "void* const*, const int64_t*, const TwTeam*"
    scratch = "const int64_t*, int64_t, int64_t[2]"
    declared = "\n".join(f"void {n}({run});\nvoid {n}_scratch({scratch});" for n in names)
    entries = "\n".join(f'    {{"{n}", {n}, {n}_scratch}},' for n in names)
    return f"""\
#include "tw.h"

extern "C" {{
{declared}
}}

struct TwEntry {{
    const char* name;
    void (*run)({run});
    void (*scratch)({scratch});
}};

extern const TwEntry tw_table[] = {{
{entries}
    {{nullptr, nullptr, nullptr}},
}};
extern const int32_t tw_table_size = {len(names)};
"""


@lru_cache(maxsize=1)
def turns_table() -> str:
    """The source of tw_turns (tw_math.h)."""
    rows = [_thirds(max(e, 1)) for e in range(255)]  # a subnormal has the exponent of row 1
    columns = []
    for part in range(3):
        numbers = ", ".join(row[part] for row in rows)
        columns.append(f'    {{{numbers}, __builtin_nan("")}}')
    body = ",\n".join(columns)
    return f"extern const double tw_turns[3][256];\nconst double tw_turns[3][256] = {{\n{body}}};\n"


def _thirds(e: int) -> tuple[str, str, str]:
    """2^(e - 150) / (2 pi) less whole turns, as hexadecimal doubles of 29, 29 and 53 bits."""
    scale = _BITS + 150 - e
    rest = _inverse_turn() % (1 << scale)  # over 2^scale
    parts = []
    for bits in (29, 29, 53):
        shift = max(rest.bit_length() - bits, 0)
        # the first part of a number over 2^-29 stops there, so that m times it keeps its fraction
        head = rest >> shift << shift
        parts.append(float.hex(_ratio(head, scale)))
        rest -= head
    return parts[0], parts[1], parts[2]


def _ratio(numerator: int, bits: int) -> float:
    # at most 53 significant bits, so the division by a power of two is exact
    return numerator / (1 << bits)


@lru_cache(maxsize=1)
def _inverse_turn() -> int:
    """2^_BITS / (2 pi), by Machin's formula pi = 16 atan(1/5) - 4 atan(1/239)."""
    guard = 64
    one = 1 << (_BITS + guard)

    def atan_inverse(n: int) -> int:
        total = term = one // n
        k, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // k)
            k, sign = k + 2, -sign
        return total

    pi = 4 * (4 * atan_inverse(5) - atan_inverse(239))
    return (one << _BITS) // (2 * pi)
