"""What names stand for while a model is imported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto

from ...ir.errors import CheckpointError, shown


@dataclass
class NameScope:
    """The names of one graph or function, with the opsets and attributes there."""

    versions: Mapping[str, int]
    outer: "NameScope | None" = None  # whose names are seen too
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)  # of a function's call
    names: dict[str, Any] = field(default_factory=dict)
    depth: int = 0

    def find(self, name: str) -> Any:
        """What a name stands for; CheckpointError where nothing defines it."""
        scope: NameScope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise CheckpointError(
            f"the name {shown(name)} is read and not defined",
            fix="export the model again: its graph is not in order",
        )
