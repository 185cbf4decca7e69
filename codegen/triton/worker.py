"""Compiles kernels in a process of its own: `python -m tilewright.codegen.triton.worker`.

Reads one JSON object a line (a folder, the target's name, a launch) and answers each with a line:
what the launch needs, the binary left in the folder, or the error's text.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...ir.errors import BuildError
from ...ir.target import get_target
from .binary import compile_kernel
from .launch import Emitted


def request_of(folder: str, target: str, number: int, emitted: Emitted) -> str:
    """The line that asks for launch `number`."""
    fields = asdict(emitted)
    kept = ("name", "source", "signature", "aligned", "num_warps", "num_stages")
    kept += ("pdl", "fp_fusion")
    launch = {"buffers": len(emitted.buffers), **{k: fields[k] for k in kept}}
    return json.dumps({"folder": folder, "target": target, "number": number, "launch": launch})


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile what `request_of` described."""
    launch = request["launch"]
    emitted = Emitted(
        launch["name"],
        launch["source"],
        tuple(range(launch["buffers"])),
        (),
        tuple((name, kind) for name, kind in launch["signature"]),
        tuple(launch["aligned"]),
        (1, 1, 1),
        launch["num_warps"],
        launch["num_stages"],
        launch["pdl"],
        launch["fp_fusion"],
    )
    try:
        compiled = compile_kernel(emitted, get_target(request["target"]))
    except BuildError as error:
        return {"number": request["number"], "error": error.facts or error.what}
    path = Path(request["folder"]) / str(request["number"])
    path.write_bytes(compiled.binary)
    facts = {k: v for k, v in asdict(compiled).items() if k != "binary"}
    return {"number": request["number"], "facts": facts}


def main() -> None:
    """Serve until the input ends."""
    # what Triton prints must not be taken for an answer
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
