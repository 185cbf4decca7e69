"""The table of what could not be imported: operations once, a line for each reason."""

import pytest

from tilewright.frontend.missing import Missing
from tilewright.ir.errors import UnsupportedOp


def test_an_operation_with_two_reasons_counts_once():
    missing = Missing()
    for where, reason in [("b", "its axis"), ("a", ""), ("c", "its axis"), ("d", "")]:
        missing.add("Resize", where, reason)
    missing.add("Odd", "e", "")
    with pytest.raises(UnsupportedOp) as caught:
        missing.raise_all("operator", "replace them")
    assert caught.value.what == "2 unsupported operators in 5 places"
    assert caught.value.facts.splitlines() == [
        "Resize     2 x  first at a",
        "Resize     2 x  first at b: its axis",
        "Odd        1 x  first at e",
    ]
    assert caught.value.fix == "replace them"


def test_an_empty_table_raises_nothing():
    Missing().raise_all("operator", "")
