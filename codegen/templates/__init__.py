"""The templates, in the order in which they are asked: a file each. See `template.py`."""

from ...ir.dim import Dim
from ...ir.graph import Node
from ...ir.target import Target
from ..loops import LoopKernel, Part
from .attention import AttentionTemplate
from .contract import ContractTemplate
from .pointwise import PointwiseTemplate
from .reduce import ReduceTemplate
from .sample import SampleTemplate
from .scan import ScanTemplate
from .scatter import ScatterTemplate
from .sort import SortTemplate
from .template import Bucket, Template

TEMPLATES: tuple[Template, ...] = (
    ContractTemplate(),
    ScanTemplate(),
    ScatterTemplate(),
    SortTemplate(),
    ReduceTemplate(),
    AttentionTemplate(),
    SampleTemplate(),
    PointwiseTemplate(),
)


def template_of(*nodes: Node) -> Template | None:
    """The template whose kernel the nodes would be; None where no template has such a kind."""
    kinds = {node.op.kind for node in nodes}
    return next((template for template in TEMPLATES if kinds & template.kinds), None)


def template_with(part: Part) -> Template:
    """The template that the part is of."""
    return next(t for t in TEMPLATES if isinstance(part, t.parts))


def choices(kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
    """The default schedules of a kernel: see `Template.defaults`."""
    return template_with(kernel.parts[0]).defaults(kernel, target)


__all__ = ["TEMPLATES", "Bucket", "Template", "choices", "template_of", "template_with"]
