"""What the steps of a compilation did: rules that fired or declined, and notes, a step each."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Findings:
    """Collected while one step runs."""

    fired: Counter[str] = field(default_factory=Counter)
    declined: Counter[tuple[str, str]] = field(default_factory=Counter)  # (rule, reason)
    notes: list[str] = field(default_factory=list)

    def fire(self, rule: str) -> None:
        """Count one application of `rule`."""
        self.fired[rule] += 1

    def decline(self, rule: str, reason: str) -> None:
        """Count one match that `rule` refused."""
        self.declined[rule, reason] += 1

    def note(self, text: str) -> None:
        """A line for the report."""
        self.notes.append(text)


@dataclass(frozen=True)
class PassReport:
    """What one step (a pass, the grouping of kernels) did."""

    name: str
    changed: bool
    seconds: float
    num_nodes: int  # after the step
    findings: Findings


@dataclass
class Report:
    """What a compilation did: prints as a table, and becomes JSON."""

    passes: list[PassReport] = field(default_factory=list)

    @property
    def fired(self) -> dict[str, int]:
        """How often each rule fired, over all steps, as 'pass: rule'."""
        total: Counter[str] = Counter()
        for each in self.passes:
            total.update({f"{each.name}: {r}": n for r, n in each.findings.fired.items()})
        return total

    def __str__(self) -> str:
        lines = [f"{'pass':32} {'ms':>8} {'nodes':>6}  rules"]
        for each in self.passes:
            name = each.name if each.changed else f"({each.name})"
            rules = ", ".join(f"{r} x {n}" for r, n in sorted(each.findings.fired.items()))
            time = f"{each.seconds * 1e3:8.1f}"
            lines.append(f"{name:32} {time} {each.num_nodes:6}  {rules}".rstrip())
            for (rule, reason), count in sorted(each.findings.declined.items()):
                lines.append(f"    declined {rule} x {count}: {reason}")
            lines += [f"    {note}" for note in each.findings.notes]
        return "\n".join(lines)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data, one item a pass."""
        return [
            {
                "pass": p.name,
                "changed": p.changed,
                "ms": round(p.seconds * 1e3, 3),
                "nodes": p.num_nodes,
                "fired": dict(sorted(p.findings.fired.items())),
                "declined": [
                    {"rule": rule, "reason": reason, "count": count}
                    for (rule, reason), count in sorted(p.findings.declined.items())
                ],
                "notes": list(p.findings.notes),
            }
            for p in self.passes
        ]
