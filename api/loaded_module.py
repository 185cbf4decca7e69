"""`load`: what was compiled and saved, run without what compiled it. Imports no framework."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.errors import ArtifactError, DimError, OptionError, joined
from ..ir.progress import Progress, unwatched
from ..runtime.artifact import Artifact, is_artifact, load_artifact, read_manifest
from ..runtime.executable import Executable
from ..runtime.stored_program import MODULE
from .artifact_facts import check_artifact
from .callable_module import CallableModule, Missed, ModuleProgram, torch_of
from .counted import counted
from .machine import open_device, resolve_target

if TYPE_CHECKING:
    from .language_model import LLM


class LoadedModule(CallableModule):
    """The programs of a saved module; made by `load`. Compiles nothing, and needs no torch.

    Takes the module's arguments: NumPy arrays, or anything with DLPack, give `Array`s, which NumPy
    and DLPack consumers take; torch tensors give torch tensors. What the module returned in a class
    of its own comes as a `Record`: a dict whose items are attributes. Buffers that the module
    writes begin with the values saved. `close()`, or leaving `with`, gives the memory back.
    """

    def __init__(self, artifact: Artifact, path: Path, progress: Progress):
        if artifact.parameters is None:
            raise ArtifactError(
                "the artifact holds no module that could be called",
                where=str(path),
                facts=f"program {artifact.program.name!r} has no signature",
                fix="write it by `tilewright.compile(module).save(path)`",
            )
        check_artifact(artifact, path)
        super().__init__(artifact.facts["module"], artifact.parameters)
        self.facts: Mapping[str, Any] = artifact.facts
        self.target = resolve_target(artifact.program.target)
        device = open_device(self.target)
        placed: dict[str, Any] = dict(counted(artifact.weights, "place", progress))
        for stored in artifact.programs:
            assert stored.signature is not None, "every program of a module is stored with one"
            names = stored.stored_names
            program = stored.program
            states = {b.name for b in program.states}
            executable = Executable(
                program,
                {name: placed[kept] for name, kept in names.items() if kept in placed},
                device,
                states={name: v for name, v in artifact.states.items() if name in states},
            )
            # the next program uses those on the device
            placed |= {names[name]: array for name, array in executable.weights.items()}
            self.variants.append(
                ModuleProgram(program=program, signature=stored.signature, executable=executable)
            )

    @property
    def report(self) -> list[dict[str, Any]]:
        """What the passes did for each program when it was compiled, as plain data."""
        return list(self.facts["programs"])

    def _check_inputs(self, inputs: Mapping[str, Any], arguments: inspect.BoundArguments) -> None:
        if torch_of(inputs.values()) is not None:
            from .arguments import check_modes, check_tensors  # torch is loaded already

            check_modes()
            check_tensors(arguments.arguments)

    def _make(self, missed: Missed) -> int:
        # a program whose sizes do not fit is nearer than one for other containers
        nearest = [error for error in missed.failures if isinstance(error, DimError)]
        nearest = nearest or missed.failures
        different = list({str(error): error for error in nearest}.values())
        error = joined(
            different, f"none of the {len(missed.variants)} programs takes these arguments"
        )
        raise type(error)(
            error.what,
            where=error.where or self._name,
            facts=error.facts,
            fix=f"call it as it was called before it was saved; {error.fix}",
        )


def load(
    path: str | Path, *, progress: Progress = unwatched, **options: Any
) -> "LLM | LoadedModule":
    """What an artifact holds, ready to run: a language model as `LLM`, any other module to call.

    Options are those of `LLM`; a module takes none. A path that holds no artifact is left to `LLM`,
    which compiles checkpoints. ArtifactError, DeviceError, OptionError.
    """
    path = Path(path)
    if not is_artifact(path) or MODULE not in read_manifest(path)["files"]:
        from .language_model import LLM

        return LLM(path, progress=progress, **options)
    if options:
        raise OptionError(
            f"a module is loaded without the option {', '.join(options)}",
            where=str(path),
            facts="how it computes was decided when it was compiled",
            fix="leave it out, or compile the module again",
        )
    return LoadedModule(load_artifact(path, progress), path, progress)
