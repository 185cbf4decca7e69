"""Request: what decides a compiled language model, and so what its cache key is made of."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..ir import switches
from ..ir.errors import OptionError
from ..ir.target import Target
from ..ir.types import DType, bf16, f16, f32
from ..runtime.artifact import is_artifact
from ..runtime.cpu import instruction_sets
from . import cache
from .identity import file_identity
from .machine import resolve_target
from .records import Records, chosen_records, records_digest

DTYPES = {
    "float32": f32,
    "f32": f32,
    "bfloat16": bf16,
    "bf16": bf16,
    "float16": f16,
    "f16": f16,
}
PAGE_SIZE = 16  # tokens of a page of keys and values


@dataclass(frozen=True)
class Request:
    """What decides a compiled model."""

    model: Any  # a path, "demo", or a transformers module
    tokenizer: Any = None
    dtype: DType | None = None  # None: the target's own choice
    target: Target = field(default_factory=lambda: resolve_target("auto"))
    kv_dtype: DType | None = None
    use_cache: bool = True
    records: Records = None

    @property
    def path(self) -> Path | None:
        """Where the model's files are; None for a module in memory."""
        if self.model == "demo":
            from .demo_model import demo_path

            return demo_path()
        return Path(self.model) if isinstance(self.model, (str, Path)) else None

    @property
    def is_artifact(self) -> bool:
        """Whether the model is compiled already."""
        return self.path is not None and is_artifact(self.path)

    @property
    def stored(self) -> DType:
        """The dtype of weights: bf16 unless asked, as memory traffic is what decoding costs."""
        return self.dtype or bf16

    @property
    def computed(self) -> DType:
        """The dtype of activations: matrix units want them narrow, a CPU gains nothing by it."""
        return self.stored if self.target.is_gpu else f32

    def __post_init__(self) -> None:
        if self.tokenizer is not None and not hasattr(self.tokenizer, "backend_tokenizer"):
            raise OptionError(
                f"tokenizer is {self.tokenizer!r}",
                facts="a fast transformers tokenizer is needed, which has a backend_tokenizer",
                fix="pass AutoTokenizer.from_pretrained(folder)",
            )

        chosen_records(self.records)  # one that is not there is named before minutes of work
        if self.records is not None and self.is_artifact:
            raise OptionError(
                f"{self.model} is compiled already, and its schedules are chosen",
                facts=f"records is {self.records}",
                fix="compile the model it was made of with these records",
            )

    def given_tokenizer(self) -> dict[str, Any]:
        """What an artifact stores of the tokenizer that was given; nothing when none was."""
        if self.tokenizer is None:
            return {}
        from ..frontend.tokenizer_source import from_transformers

        return from_transformers(self.tokenizer).load().stored()

    @property
    def key(self) -> str | None:
        """The cache key; None for a module, whose content has no identity short of reading it.

        None as well where somebody wants to watch the compilation.
        """
        path = self.path
        watched = any(switches.get(name) is not None for name in ("dump", "stop_after"))
        if path is None or watched or not self.use_cache:
            return None
        return cache.key_of(
            {
                "files": file_identity(path),
                "tokenizer": self.given_tokenizer(),
                "dtype": self.stored.name,
                "kv_dtype": str(self.kv_dtype),
                "target": repr(self.target),
                "isa": [] if self.target.is_gpu else instruction_sets(),
                "page_size": PAGE_SIZE,
                "records": records_digest(self.records, self.target),
            }
        )


def parse_dtype(name: str, option: str) -> DType | None:
    """The dtype called `name`, None for "auto". OptionError names the option and the choices."""
    name = str(name).removeprefix("torch.")  # torch.float16 is a name for it too
    if name == "auto":
        return None
    if name not in DTYPES:
        raise OptionError(f"{option} is {name!r}", facts=f"choices: auto, {', '.join(DTYPES)}")
    return DTYPES[name]
