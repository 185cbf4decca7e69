"""Where the parts of a language model in ONNX lie; nothing here reads the model itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...ir.errors import CheckpointError, listed, shown
from ..shards import read_json

# Of several files, in this order: all but the first are of exports that split a decoder, or keep it
# in one file beside its parts. Each gives the same logits where there is no past.
DECODERS = (
    "model.onnx",
    "decoder_model_merged.onnx",
    "decoder_with_past_model.onnx",
    "decoder_model.onnx",
)


@dataclass(frozen=True)
class OnnxFolder:
    """A decoder's file, and the folder that its tokenizer and its settings are in."""

    model: Path
    folder: Path
    note: str = ""  # which of several files is taken

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json as transformers writes it; nothing where there is none."""
        return self._read("config.json")

    @cached_property
    def genai(self) -> Mapping[str, Any]:
        """What genai_config.json of onnxruntime-genai says of the model, `decoder` among it."""
        return table(self._read("genai_config.json"), "model")

    @property
    def decoder(self) -> Mapping[str, Any]:
        """The part of `genai` that tells the decoder's file, sizes, inputs and outputs."""
        return table(self.genai, "decoder")

    def _read(self, name: str) -> Mapping[str, Any]:
        path = self.folder / name
        return read_json(path) if path.is_file() else {}


def table(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table in a table of settings; nothing where there is none."""
    found = fields.get(name)
    return found if isinstance(found, Mapping) else {}


def find_onnx(path: Path) -> OnnxFolder | None:
    """The ONNX model that a path names: a file, or a folder with one and no other weights.

    It may be in the folder `onnx` beside the tokenizer. None for models of other kinds.
    CheckpointError where a folder has several of which none is named as a decoder.
    """
    if path.suffix == ".onnx" and path.is_file():
        folder = path.parent
        is_inner = folder.resolve().name == "onnx" and not (folder / "tokenizer.json").is_file()
        return OnnxFolder(path, folder.parent if is_inner else folder)
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    files = sorted([*path.glob("*.onnx"), *path.glob("onnx/*.onnx")])
    if not files:
        return None
    named = OnnxFolder(files[0], path).decoder.get("filename")
    if named is not None:
        chosen = [file for file in files if str(file.relative_to(path)) == named]
        if not chosen:
            raise CheckpointError(
                "the model's file is not there",
                where=str(path / "genai_config.json"),
                facts=f"it names {shown(named)}; found {_names(files, path)}",
                fix="copy the file into the folder, or name another: LLM('folder/model.onnx')",
            )
    else:
        known = [file for name in DECODERS for file in files if file.name == name]
        chosen = known or files
        if not known and len(files) > 1:
            raise CheckpointError(
                "which of the folder's ONNX models is the language model is not known",
                where=str(path),
                facts=f"found {_names(files, path)}; none is named {', '.join(DECODERS)}",
                fix=f"name the file: LLM({str(files[0])!r})",
            )
    note = f"of {_names(files, path)}, {chosen[0].relative_to(path)} is taken"
    return OnnxFolder(chosen[0], path, note if len(files) > 1 else "")


def _names(files: list[Path], folder: Path) -> str:
    return listed([str(file.relative_to(folder)) for file in files], ", ")
