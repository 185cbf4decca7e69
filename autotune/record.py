"""One record: the schedule that was fastest for a key, and how it was found; as JSON and back."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args

from ..codegen import templates  # noqa: F401  these bring the classes of schedules
from ..codegen.cpp import schedules  # noqa: F401
from ..codegen.templates.template import Schedule
from ..ir.errors import BuildError, ParseError
from .key import PARTS, Key
from .record_file import StoredRecord


@dataclass(frozen=True)
class ScheduleRecord:
    """The seconds are of one launch, as in `TaskOutcome`; `tried` counts candidates.

    `when`: the time in UTC, as ISO 8601 has it. `device`: its name. `versions` are those of what
    compiled it.
    """

    key: Key
    schedule: Schedule
    seconds: float
    default_seconds: float
    floor_seconds: float
    tried: int
    when: str
    device: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        own["versions"] = dict(self.versions)
        return {**own, "key": asdict(self.key), "schedule": schedule_to_json(self.schedule)}

    @property
    def line(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(self.to_json(), sort_keys=True, ensure_ascii=True)

    @property
    def stored(self) -> StoredRecord:
        """As a file of records has it."""
        target = self.key.target.split(" ")[0]
        return StoredRecord(self.key.digest, target, self.when, self.line)


def parse_lines(lines: Iterable[str], where: str) -> list[ScheduleRecord]:
    """The records that lines are. ParseError, which names the line, for one that is none."""
    named = ((line, f"{where}:{number}") for number, line in enumerate(lines, 1))
    return [parse_record(line, place) for line, place in named]


def parse_record(text: str, where: str) -> ScheduleRecord:
    """The record that one line of JSON is. ParseError names `where` and all that is wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("a record is one JSON document", where=where, facts=str(error)) from None
    problems: list[str] = []
    names = [f.name for f in fields(ScheduleRecord)]
    if _has_fields(data, names, "a record", problems):
        if _has_fields(data["key"], PARTS, "key", problems):
            wrong = [part for part in PARTS if not isinstance(data["key"][part], str)]
            problems += [f"key.{part} is no text" for part in wrong]
            if not wrong:
                key = Key(**data["key"])
                problems += _problem_of(lambda: key.bounds)
        problems += _problem_of(lambda: schedule_from_json(data["schedule"]))
        for name in ("seconds", "default_seconds", "floor_seconds"):
            value = data[name]
            is_number = type(value) in (int, float) and math.isfinite(value) and value >= 0
            problems += [] if is_number else [f"{name} is {value!r}, no time"]
        if type(data["tried"]) is not int or data["tried"] < 0:
            problems.append(f"tried is {data['tried']!r}, no count")
        for name in ("when", "device"):
            problems += (
                [] if isinstance(data[name], str) else [f"{name} is {data[name]!r}, no text"]
            )
        versions = data["versions"]
        is_named = isinstance(versions, dict) and all(
            isinstance(value, str) for value in versions.values()
        )
        problems += [] if is_named else ["versions does not map names to texts"]
    if problems:
        raise ParseError(
            "this is no record of tuning",
            where=where,
            facts="\n".join(problems),
            fix="records are written by `tilewright tune --export`",
        )
    return ScheduleRecord(**{**data, "key": key, "schedule": schedule_from_json(data["schedule"])})


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """The fields, and the class as `kind`."""
    return {"kind": type(schedule).__name__, **asdict(schedule)}  # type: ignore[call-overload]


def schedule_from_json(data: Any) -> Schedule:
    """The schedule. ValueError when it is none of ours, BuildError when it leaves its domain."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ValueError("schedule is no object with a kind")
    kinds = {kind.__name__: kind for kind in Schedule.__subclasses__()}
    if data["kind"] not in kinds:
        raise ValueError(f"no schedule is a {data['kind']!r}: there are {', '.join(sorted(kinds))}")
    kind = kinds[data["kind"]]
    problems: list[str] = []
    given = {name: value for name, value in data.items() if name != "kind"}
    expected = fields(kind)  # type: ignore[arg-type]
    if _has_fields(given, [f.name for f in expected], data["kind"], problems):
        for each in expected:
            # a bool is an int to Python, not here
            if type(given[each.name]) not in (get_args(each.type) or (each.type,)):
                problems.append(f"{data['kind']}.{each.name} is {given[each.name]!r}")
    if problems:
        raise ValueError("\n".join(problems))
    return kind(**given)


def _has_fields(data: Any, names: Any, what: str, problems: list[str]) -> bool:
    if not isinstance(data, dict):
        problems.append(f"{what} is no object")
        return False
    missing, unknown = set(names) - data.keys(), data.keys() - set(names)
    problems += [f"{what} has no {name}" for name in sorted(missing)]
    problems += [f"{what} has an unknown {name}" for name in sorted(unknown)]
    return not missing and not unknown


def _problem_of(read: Any) -> list[str]:
    try:
        read()
    except (ValueError, BuildError) as error:
        return [str(error)]
    return []
