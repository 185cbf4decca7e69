"""One record: the schedule that was fastest for a key, and how it was found; as JSON and back."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, get_args

from ..codegen import templates  # noqa: F401  these bring the classes of schedules
from ..codegen.build_steps import VERSION
from ..codegen.cpp import schedules  # noqa: F401
from ..codegen.templates.template import Schedule
from ..ir.errors import BuildError, ParseError
from .key import PARTS, Key
from .record_file import StoredRecord


@dataclass(frozen=True)
class UnreadSchedule(Schedule):
    """Of another version of code generation, as it was written: nobody takes it."""

    written: Mapping[str, Any]


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
    if _has_fields(data, [f.name for f in fields(ScheduleRecord)], "a record", problems):
        for name, (what, is_one) in _FIELDS.items():
            if not is_one(data[name]):
                problems.append(f"{name} is {data[name]!r}, not {what}")
        for name, read in (("key", _key_from_json), ("schedule", _schedule_of(data))):
            try:
                data[name] = read(data[name])
            except (ValueError, BuildError) as error:
                problems.append(str(error))
    if problems:
        raise ParseError(
            "this is no record of tuning",
            where=where,
            facts="\n".join(problems),
            fix="`tilewright tune` writes records; TILEWRIGHT_RECORDS=none builds without any",
        )
    return ScheduleRecord(**data)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "seconds": ("a time", _is_time),
    "default_seconds": ("a time", _is_time),
    "floor_seconds": ("a time", lambda value: value == 0 or _is_time(value)),
    "tried": ("a count", lambda value: type(value) is int and value >= 0),
    "when": ("a text", _is_text),
    "device": ("a text", _is_text),
    "versions": (
        "texts by name",
        lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    ),
}


def _key_from_json(data: Any) -> Key:
    problems: list[str] = []
    if _has_fields(data, PARTS, "key", problems):
        problems += [f"key.{part} is no text" for part in PARTS if not _is_text(data[part])]
    if problems:
        raise ValueError("\n".join(problems))
    key = Key(**data)
    _ = key.bounds
    return key


def _schedule_of(record: Mapping[str, Any]) -> Callable[[Any], Schedule]:
    """How its schedule is read; one for another version may be of a kind that is gone."""
    key = record["key"]
    is_ours = not isinstance(key, dict) or key.get("codegen") == str(VERSION)
    return schedule_from_json if is_ours else _unread


def _unread(data: Any) -> Schedule:
    if not isinstance(data, dict):
        raise ValueError("schedule is no object")
    return UnreadSchedule(data)


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """The fields, and the class as `kind`."""
    if isinstance(schedule, UnreadSchedule):
        return dict(schedule.written)
    return {"kind": type(schedule).__name__, **asdict(schedule)}  # type: ignore[call-overload]


def schedule_from_json(data: Any) -> Schedule:
    """The schedule; a field that came later has its default.

    ValueError when it is none of ours, BuildError when it leaves its domain.
    """
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ValueError("schedule is no object with a kind")
    known = (kind for kind in Schedule.__subclasses__() if kind is not UnreadSchedule)
    kinds = {kind.__name__: kind for kind in known}
    if data["kind"] not in kinds:
        raise ValueError(f"no schedule is a {data['kind']!r}: there are {', '.join(sorted(kinds))}")
    kind = kinds[data["kind"]]
    expected = fields(kind)  # type: ignore[arg-type]
    later = {f.name: f.default for f in expected if f.default is not MISSING}
    given = {**later, **{name: value for name, value in data.items() if name != "kind"}}
    problems: list[str] = []
    if _has_fields(given, [f.name for f in expected], data["kind"], problems):
        for each in expected:
            # a bool is an int to Python, not here
            if type(given[each.name]) not in (get_args(each.type) or (each.type,)):
                problems.append(f"{data['kind']}.{each.name} is {given[each.name]!r}")
    if problems:
        raise ValueError("\n".join(problems))
    return kind(**given)


def _has_fields(data: Any, names: Iterable[str], what: str, problems: list[str]) -> bool:
    if not isinstance(data, dict):
        problems.append(f"{what} is no object")
        return False
    missing, unknown = set(names) - data.keys(), data.keys() - set(names)
    problems += [f"{what} has no {name}" for name in sorted(missing)]
    problems += [f"{what} has an unknown {name}" for name in sorted(unknown)]
    return not missing and not unknown
