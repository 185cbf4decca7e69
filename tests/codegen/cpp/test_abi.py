"""What ir/abi.py says of a CPU library, held against the C++ that says it again."""

import re
from pathlib import Path

from tilewright.codegen.cpp import binary as cpp_compile
from tilewright.ir import abi
from tilewright.ir.encoding import PANEL
from tilewright.ir.target import cpu

FOLDER = Path(cpp_compile.__file__).parent
DRIVER = (FOLDER / "driver.cpp").read_text()
KINDS = {"int32_t": "<i4", "void* const*": "<u8", "const int64_t*": "<u8"}


def test_a_step_is_laid_out_as_the_driver_reads_it():
    body = re.search(r"struct TwStep \{(.*?)\};", DRIVER, re.DOTALL).group(1)
    fields = re.findall(r"([\w* ]+?) ?(\w+);", body)
    assert [(name, KINDS[kind.strip()]) for kind, name in fields] == abi.STEP.descr
    assert abi.STEP.itemsize == 24  # nothing is padded on a machine of 64 bits


def test_numbers_come_from_one_place():
    """The driver is told what it returns; nothing but `return 0` is written there."""
    flags = cpp_compile.flags_for(cpu())
    for name in ("ABI_VERSION", "NO_MEMORY", "BAD_STEP", "COPY", "REPEAT", "CHOOSE"):
        value = getattr(abi, name.removeprefix("ABI_"))
        assert f"-DTW_{name}={value}" in flags
        assert f"TW_{name}" in DRIVER
    run = DRIVER[DRIVER.index("int32_t tw_run(") :]
    assert set(re.findall(r"return (\d+);", run)) == {"0"}
    assert abi.OK == 0


def test_exported_names_are_those_described():
    exported = set(re.findall(r'default"\)\)\) (?:const )?[\w*]+ (tw_\w+)\(', DRIVER))
    assert exported == set(re.findall(r" (tw_\w+)\(", abi.__doc__))


def test_the_panel_is_that_of_the_header():
    header = (FOLDER / "tw_micro.h").read_text()
    assert int(re.search(r"#define TW_PANEL (\d+)", header).group(1)) == PANEL


def test_a_record_is_read_as_it_is_written():
    """tw.h writes the size and then the index, side by side."""
    header = (FOLDER / "tw.h").read_text()
    written = re.findall(r"__atomic_store_n\(record(?: \+ (\d))?, (.+?), __A", header)
    assert written == [("1", "(int64_t)index"), ("", "size + 1"), ("", "(int64_t)1")]
    assert abi.RECORD_WORDS == 2
    assert abi.RECORD_BYTES == 8 * abi.RECORD_WORDS
