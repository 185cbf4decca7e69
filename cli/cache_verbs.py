"""`tilewright list` and `tilewright prune`: what is in the cache of compiled models."""

import time
from pathlib import Path
from typing import Annotated

import typer

from ..api import cache
from ..ir.errors import ArtifactError, OptionError
from . import options
from .console import human_bytes, print_json


def list_models(as_json: options.AsJson = False) -> None:
    """List the compiled models in the cache, the one used last first."""
    rows = entries()
    if as_json:
        print_json(rows)
        return
    for row in rows:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["used"]))
        about = f"{row['model']}, {row['dtype']} for {row['target']}"
        print(f"{row['key'][:12]}  {human_bytes(row['bytes']):>10}  {used}  {about}")
    total = sum(row["bytes"] for row in rows)
    print(f"{len(rows)} compiled models, {human_bytes(total)}, in {cache.cache_dir()}")


def prune_cache(
    keys: Annotated[
        list[str] | None, typer.Argument(help="Keys of `tilewright list`, or beginnings of them.")
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(min=0, help="Forget those used longest ago until the rest fits."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove compiled models from the cache: those named, or until the rest is small enough."""
    if bool(keys) == (max_bytes is not None):
        raise typer.BadParameter("give keys, or --max-bytes", param_hint="KEYS")
    rows = entries()
    if keys:
        chosen = _named(keys, rows)
        for row in chosen:
            cache.remove(Path(row["path"]))
    else:
        gone = set(map(str, cache.prune(max_bytes or 0, least=0)))
        chosen = [row for row in rows if row["path"] in gone]
    if as_json:
        print_json({"removed": chosen})
    else:
        print(f"removed {len(chosen)}, {human_bytes(sum(row['bytes'] for row in chosen))}")


def entries() -> list[dict]:
    """One item a compiled model: key, model, dtype, target, bytes, when it was used (seconds)."""
    from ..runtime.artifact import read_facts  # loads NumPy, which help texts do without

    rows = []
    for path in cache.entries():
        used, size = cache.age_and_size(path)
        try:
            manifest, facts = read_facts(path)
        except ArtifactError:
            manifest, facts = {"target": {"name": "?"}}, {"architecture": "damaged", "dtype": "?"}
        rows.append(
            {
                "key": path.name,
                "model": facts.get("source") or facts.get("architecture", "?"),
                "architecture": facts.get("architecture", "?"),
                "dtype": facts.get("dtype", "?"),
                "target": manifest["target"].get("name", "?"),
                "bytes": size,
                "used": used,
                "path": str(path),
            }
        )
    return sorted(rows, key=lambda row: -row["used"])


def _named(keys: list[str], rows: list[dict]) -> list[dict]:
    unknown = [key for key in keys if sum(row["key"].startswith(key) for row in rows) != 1]
    if unknown:
        raise OptionError(
            f"{', '.join(unknown)}: not the key of one compiled model",
            facts=f"keys: {', '.join(row['key'][:12] for row in rows) or 'none'}",
            fix="see `tilewright list`",
        )
    return [row for row in rows if any(row["key"].startswith(key) for key in keys)]
