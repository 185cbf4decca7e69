"""What of a model could not be imported: every operation, how often, and where first."""

from dataclasses import dataclass, field

from ..ir.errors import UnsupportedOp


@dataclass
class _Row:
    first: str
    count: int = 0


@dataclass
class Missing:
    """A table of the operations that could not be imported, a row for each reason."""

    rows: dict[tuple[str, str], _Row] = field(default_factory=dict)

    def add(self, name: str, where: str, reason: str) -> None:
        """Enter one use of an operation."""
        self.rows.setdefault((name, reason), _Row(where)).count += 1

    def raise_all(self, noun: str, fix: str) -> None:
        """Raise UnsupportedOp with the whole table, unless it is empty.

        `noun` is what the model's own language calls an operation.
        """
        if not self.rows:
            return
        rows = sorted(self.rows.items(), key=lambda item: (-item[1].count, item[0]))
        width = max(len(name) for name, _ in self.rows)
        lines = [
            f"{name:{width}}  {row.count:4} x  first at {row.first}"
            + (f": {reason}" if reason else "")
            for (name, reason), row in rows
        ]
        count = len({name for name, _ in self.rows})
        total = sum(row.count for row in self.rows.values())
        raise UnsupportedOp(
            f"{count} unsupported {noun}{'s' * (count > 1)} in {total} places",
            facts="\n".join(lines),
            fix=fix,
        )
