"""The templates, in the order in which they are asked: a file each. See `template.py`."""

from collections.abc import Iterable

from ...ir.dim import Dim
from ...ir.errors import UnsupportedOp
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


def template_of(nodes: Iterable[Node]) -> Template:
    """The template whose kernel the nodes would be. UnsupportedOp where it is none's."""
    nodes = list(nodes)
    for template in TEMPLATES:
        if any(node.op.kind in template.kinds for node in nodes):
            return template
    first = nodes[0]
    raise UnsupportedOp(
        f"no template takes {first.op.name}",
        where=first.loc or "",
        facts=f"its kind is {first.op.kind}; templates take "
        f"{', '.join(sorted(kind for t in TEMPLATES for kind in t.kinds))}",
        fix="decompose it first",
    )


def template_with(part: Part) -> Template:
    """The template that the part is of."""
    return next(t for t in TEMPLATES if isinstance(part, t.parts))


def choices(kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
    """The default schedules of a kernel: see `Template.defaults`."""
    return template_with(kernel.parts[0]).defaults(kernel, target)


__all__ = ["TEMPLATES", "Bucket", "Template", "choices", "template_of", "template_with"]
