"""Writes docs/causal_types.md from what `tilewright.tests.models.causal_types` found.

    python docs/causal_types.py results.jsonl [others.jsonl]

Of a type in several files the best row counts: right on any target, else the last.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "causal_types.md"
HEAD = """# Causal language models of transformers

Written by `docs/causal_types.py` from runs of `python -m tilewright.tests.models.causal_types`:
a tiny random model of each of the {count} types that transformers {version} knows. Right is a type
whose next 12 tokens through `LLM` are eager's, for a prompt alone and for three of different
lengths in one batch, in float32.
"""
TARGETS = {"cpu": "the CPU", "sm_90": "an H200", "reference": "the reference alone"}


def rank(row: dict[str, Any]) -> int:
    """How much a row says: right, then refused, then what did not come so far."""
    return 2 if all(row.get("is_right") or [False]) else int(bool(row.get("is_refused")))


def page(rows: list[dict[str, Any]], version: str) -> str:
    """The page, of one row a type."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["type"] not in best or rank(row) >= rank(best[row["type"]]):
            best[row["type"]] = row
    right, recurrent = defaultdict(list), defaultdict(list)
    others: list[tuple[str, str]] = []
    for kind, row in sorted(best.items()):
        error = row.get("error", "")
        if rank(row) == 2:
            right[row["stage"]].append(kind)
        elif "recurrent state" in error:
            layers = re.search(r"layers of type ([\w, ]+)", error)
            recurrent[layers[1].strip() if layers else "the whole model"].append(kind)
        else:
            others.append((kind, _reason(row)))
    lines = [HEAD.format(version=version, count=len(best))]
    lines += [f"## Right: {sum(map(len, right.values()))}", ""]
    for stage, kinds in right.items():
        lines += [f"On {TARGETS[stage]}: {_named(kinds)}.", ""]
    lines += [f"## Refused for their recurrent state: {sum(map(len, recurrent.values()))}", ""]
    lines += ["Of a sequence only keys and values are kept. By the layers that keep more:", ""]
    lines += [f"- {layers}: {_named(kinds)}" for layers, kinds in sorted(recurrent.items())]
    lines += ["", f"## Others: {len(others)}", "", "| type | what happens |", "|---|---|"]
    lines += [f"| `{kind}` | {reason} |" for kind, reason in others]
    return "\n".join(lines) + "\n"


def _named(kinds: list[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in kinds)


def _reason(row: dict[str, Any]) -> str:
    if not row.get("error"):
        return f"{row['step']}: {'wrong' if 'is_right' in row else 'no result'}"
    parts = row["error"].split(" | ")
    text = f"refused: {parts[0].partition(': ')[2]}" if row["is_refused"] else parts[0]
    where = next((part for part in parts[1:] if part.startswith("at modeling")), "")
    return f"{text} ({where.removeprefix('at ')})".replace("|", "/") if where else text


def main() -> None:
    """Write the page from the files named."""
    from importlib.metadata import version

    lines = [line for name in sys.argv[1:] for line in Path(name).read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    PAGE.write_text(page(rows, version("transformers")))


if __name__ == "__main__":
    main()
