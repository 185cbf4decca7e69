"""The public functions that tell what lies at a path; `tilewright` resolves its names here.

Imports no framework: what is compiled already runs without one.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.errors import OptionError
from ..ir.progress import Progress, unwatched

if TYPE_CHECKING:
    from .language_model import LLM
    from .loaded_module import LoadedModule


def load(
    path: str | Path, *, progress: Progress = unwatched, **options: Any
) -> "LLM | LoadedModule":
    """What an artifact holds, ready to run: a language model as `LLM`, any other module to call.

    Options are those of `LLM`; a module takes none. A path that holds no artifact is left to `LLM`,
    which compiles checkpoints. ArtifactError, DeviceError, OptionError.
    """
    from ..runtime.artifact import is_artifact, read_manifest
    from ..runtime.stored_program import MODULE

    if not is_artifact(path) or MODULE not in read_manifest(path)["files"]:
        from .language_model import LLM

        return LLM(path, progress=progress, **options)
    from .loaded_module import load_module

    if options:
        raise OptionError(
            f"a module is loaded without the option {', '.join(options)}",
            where=str(path),
            facts="how it computes was decided when it was compiled",
            fix="leave it out, or compile the module again",
        )
    return load_module(Path(path), progress)
