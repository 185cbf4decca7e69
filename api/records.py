"""Which records of tuning a program is built with: those that are named, or the user's own."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..ir import switches
from ..ir.errors import OptionError
from ..ir.report import PassReport, Report
from ..ir.target import Target
from . import cache

if TYPE_CHECKING:
    from ..codegen.backend import Schedules

NONE = "none"  # in place of a file: the default schedules
FILE = "records.sqlite"  # in the cache's folder
Records = str | Path | None  # how callers name them


def chosen_records(records: Records) -> Path | None:
    """The file: the one named, else that of the switch `records`, else the user's own.

    None where the default schedules are asked for. OptionError when a file is named that is not
    there: the user's own comes with the first tuning.
    """
    if records is not None and not isinstance(records, str | Path):
        raise OptionError(
            f"records is {records!r}",
            facts=f"it is a file of tuning records, or {NONE!r} for the default schedules",
        )
    named = records if records is not None else switches.get("records")
    if named is None:
        return user_records()
    if str(named) == NONE:
        return None
    path = Path(named).expanduser()
    if not path.is_file():
        raise OptionError(
            "there is no such file of records",
            where=str(path),
            fix="tune first: tilewright tune MODEL --records FILE",
        )
    return path


def user_records() -> Path:
    """The file that building reads where none is named."""
    return cache.cache_dir() / FILE


def tuned_records(records: Path | None) -> Path:
    """The file that tuning writes, which need not be there: named, by the switch, or the user's."""
    named = records or switches.get("records")
    return user_records() if named is None or str(named) == NONE else Path(named).expanduser()


def records_digest(records: Records, target: Target) -> str:
    """Hash of the records that may be taken for a target: part of what is built."""
    from ..autotune.record_file import digest_of

    path = chosen_records(records)
    return "" if path is None else digest_of(path, target.name)


def schedules_of(records: Records, target: Target) -> "Schedules":
    """What `codegen.build` is given: recorded schedules, or the default ones."""
    from ..autotune.recorded import load
    from ..codegen.backend import UNTUNED

    path = chosen_records(records)
    found = None if path is None else load(path, target)
    return found if found is not None and found.records else UNTUNED


def report_records(schedules: "Schedules", num_nodes: int, report: Report) -> None:
    """Add which kernels had a recorded schedule, and of the others what their keys lack."""
    from ..autotune.recorded import RecordedSchedules

    if isinstance(schedules, RecordedSchedules):
        found = schedules.findings
        report.passes.append(PassReport("records", bool(found.fired), 0.0, num_nodes, found))
