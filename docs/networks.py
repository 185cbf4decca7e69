"""Writes docs/networks.md from what vision_types.py and hf_types.py of tests/models found.

    python docs/networks.py DATE --vision "the CPU (torch 2.13)=a.jsonl" --types "an H200=b.jsonl"

Each option may be given several times: where the rows were made, and the file they are in.
"""

import argparse
import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "networks.md"
TOLERANCE = 1e-4
HEAD = """# Networks through `compile`

Written by `docs/networks.py` from runs of `python -m tilewright.tests.models.vision_types` and
`python -m tilewright.tests.models.hf_types` of {date}. Each network has random weights and is
compiled for any batch, by an example of 2. Right is one whose results, in float32 and at batches of
other sizes, differ from eager's by at most 1e-4 of their largest element. Most are smaller than
those that people run: few layers, small images.
"""

Row = dict[str, Any]
Run = tuple[str, dict[str, Row]]  # where it was, and its rows by type


def is_right(row: Row) -> bool:
    """Whether it ran to the end and its numbers are eager's."""
    return row["step"] == "done" and row.get("difference", 1) <= TOLERANCE


def section(title: str, runs: list[Run]) -> list[str]:
    """The lines about one list of networks; of what is right nowhere the last row counts."""
    last = {kind: row for _, rows in runs for kind, row in rows.items()}
    right = {kind for _, rows in runs for kind, row in rows.items() if is_right(row)}
    made = {k for k, row in last.items() if k in right or row["step"] in ("compile", "run", "done")}
    lines = [f"## {title}: {len(right)} of {len(made)}", ""]
    for place, rows in runs:
        kinds = sorted(kind for kind, row in rows.items() if is_right(row))
        lines += [f"{len(kinds)} right on {place}: {_named(kinds)}.", ""]
    if wrong := sorted(made - right):
        lines += ["| type | what happens |", "|---|---|"]
        lines += [f"| `{kind}` | {_reason(last[kind])} |" for kind in wrong] + [""]
    if others := sorted(last.keys() - made):
        lines += [f"Of {len(others)} the script makes no tiny model that eager runs, or the time"]
        lines += [f"was up: {_named(others)}.", ""]
    return lines


def _named(kinds: list[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in kinds)


def _reason(row: Row) -> str:
    if "error" not in row:
        return f"differs by {row['difference']:.1e}" if "difference" in row else row["step"]
    what, *rest = row["error"].split(" | ")
    where = next((part for part in rest if part.startswith("at ")), "")
    return f"{what} ({where.removeprefix('at ')})".replace("|", "/") if where else what


def _run(argument: str) -> Run:
    place, _, name = argument.rpartition("=")
    rows = map(json.loads, Path(name).read_text().splitlines())
    return place, {row["type"]: row for row in rows}


def main() -> None:
    """Write the page from the files named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("date")
    parser.add_argument("--vision", type=_run, action="append", default=[])
    parser.add_argument("--types", type=_run, action="append", default=[])
    options = parser.parse_args()
    lines = [HEAD.format(date=options.date)]
    lines += section("timm and torchvision", options.vision)
    lines += section("transformers", options.types)
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
