"""What the switches `dump` and `log` show of a compilation besides the graphs."""

import logging
import sys

from ..ir import switches
from ..ir.plan import Plan
from ..ir.program import Program
from ..ir.text import print_plan

_SUFFIX = {"cpp": ".cpp", "triton": ".py"}


def dump_program(plan: Plan, program: Program) -> None:
    """With the switch `dump`: the plan beside the graphs, each kernel's source in `kernels`."""
    folder = switches.get("dump")
    if folder is None:
        return
    (folder / "plan.ir").write_text(print_plan(plan))
    folder = folder / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    for kernel in program.kernels.values():
        (folder / f"{kernel.name}{_SUFFIX[kernel.language]}").write_text(kernel.source)


def start_logging() -> None:
    """With the switch `log`: lines of the chosen topics on standard error."""
    for topic in switches.get("log"):
        logger = logging.getLogger(f"tilewright.{topic}")
        if not logger.handlers:
            handler = _StandardError()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)


class _StandardError(logging.Handler):
    """To whatever is standard error at the time: a line may be drawn on it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)
