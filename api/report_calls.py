"""What of a program is left to functions of the host, for its report."""

from collections import Counter

from ..ir.dim import evaluate, symbols_of
from ..ir.program import Program
from ..ir.report import Findings, PassReport, Report
from ..ir.steps import HostCall, walk


def report_calls(program: Program, num_nodes: int, report: Report) -> None:
    """Add a line for each function that the program calls, with the bytes it moves and their share.

    Bytes are those of operands and results, at the sizes that the example had; a step counts once,
    however often a loop runs it.
    """
    steps = list(walk(program.steps))
    names = Counter(step.function for step in steps if isinstance(step, HostCall))
    if not names:
        return
    sizes = {name: s.hint or max(s.lo, 1) for name, s in program.symbols.items()}
    moved = [(step, evaluate(step.traffic, sizes)) for step in steps]
    total = max(sum(nbytes for _, nbytes in moved), 1)
    findings = Findings(fired=names)
    for name, count in names.items():
        own = [(s, n) for s, n in moved if isinstance(s, HostCall) and s.function == name]
        nbytes = sum(n for _, n in own)
        dims = sorted({symbol for step, _ in own for symbol in symbols_of(step.traffic)})
        at = "".join(f", {dim} = {sizes[dim]}" for dim in dims)
        findings.note(f"{name} x {count}: {nbytes} bytes, {nbytes / total:.0%} of all{at}")
    report.passes.append(PassReport("calls", True, 0.0, num_nodes, findings))
