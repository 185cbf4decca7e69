"""Compiles kernels in a process of its own: `python -m tilewright.codegen.triton.worker`.

Reads one JSON object a line (a file's path, the target's name, a launch) and answers each with a
line: what the launch needs, the binary left in the file, or the error's text.
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


def request_of(binary: Path, target: str, emitted: Emitted) -> str:
    """The line that asks for a launch's binary, in a file."""
    return json.dumps({"binary": str(binary), "target": target, "launch": asdict(emitted.code)})


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile what `request_of` described."""
    try:
        compiled = compile_kernel(Emitted(**request["launch"]), get_target(request["target"]))
    except BuildError as error:
        return {"error": error.facts or error.what}
    Path(request["binary"]).write_bytes(compiled.binary)
    return {k: v for k, v in asdict(compiled).items() if k != "binary"}


def main() -> None:
    """Serve until the input ends."""
    # what Triton prints must not be taken for an answer
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
