"""What of a model could not be imported: every operator, how often, and where first."""

from dataclasses import dataclass, field

from ...ir.errors import UnsupportedOp


@dataclass
class _Row:
    reason: str
    first: str
    count: int = 0


@dataclass
class Missing:
    """A table of the operators that could not be imported."""

    rows: dict[tuple[str, str], _Row] = field(default_factory=dict)

    def add(self, name: str, where: str, reason: str) -> None:
        """Enter one use of an operator."""
        self.rows.setdefault((name, reason), _Row(reason, where)).count += 1

    def raise_all(self) -> None:
        """Raise UnsupportedOp with the whole table, unless it is empty."""
        if not self.rows:
            return
        rows = sorted(self.rows.items(), key=lambda item: (-item[1].count, item[0]))
        width = max(len(name) for name, _ in self.rows)
        lines = [
            f"{name:{width}}  {row.count:4} x  first at {row.first}"
            + (f": {row.reason}" if row.reason else "")
            for (name, _), row in rows
        ]
        total = sum(row.count for row in self.rows.values())
        raise UnsupportedOp(
            f"{len(rows)} unsupported operator{'s' * (len(rows) > 1)} in {total} places",
            facts="\n".join(lines),
            fix="replace them in the model by supported ones",
        )
