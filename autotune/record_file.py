"""A file of records: SQLite that any number of processes may read and write at once.

Here a record is a line of text under a digest: what a line says, `record.py` knows. So asking what
a file holds loads nothing that compiles.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..ir.errors import ArtifactError, OptionError

FORMAT = 1  # of the table; a file of a newer one is refused
APPLICATION = 0x54574854  # marks the file as ours
WAIT_SECONDS = 60.0  # for others who write
LINES = ".jsonl"  # suffix of files with a record a line
SHIPPED = Path(__file__).with_name("shipped")
_TABLE = """CREATE TABLE records (
    digest TEXT PRIMARY KEY, target TEXT NOT NULL, written TEXT NOT NULL, line TEXT NOT NULL
) WITHOUT ROWID"""
# of two with one key the later; of one time the order of their text decides, whoever comes first
_ADD = """INSERT INTO records VALUES (?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE
SET target = excluded.target, written = excluded.written, line = excluded.line
WHERE (excluded.written, excluded.line) > (written, line)"""


@dataclass(frozen=True)
class StoredRecord:
    """A row of the table: `target` is the target's name, `written` the record's time."""

    digest: str
    target: str
    written: str
    line: str


class RecordFile:
    """Opened for each call and closed again, so that forked processes and threads may share one.

    A file named *.jsonl is read, a record a line, and not written.
    """

    def __init__(self, path: Path):
        self.path = path

    def lines(self, target: str | None = None) -> list[str]:
        """The records, in order of their digests, those of a target where one is named.

        None where there is no file; all of a *.jsonl as it stands. ArtifactError when the file is
        damaged, no file of records, or of a newer version.
        """
        if not self.path.exists():
            return []
        if self.path.suffix == LINES:
            return [line for line in self._text().splitlines() if line.strip()]
        with self._open() as database:
            where = "" if target is None else "WHERE target = ?"
            given = () if target is None else (target,)
            query = f"SELECT line FROM records {where} ORDER BY digest"
            return [line for (line,) in database.execute(query, given)]

    def add(self, records: Iterable[StoredRecord], instead_of: Iterable[str] = ()) -> int:
        """Keep records, all or none; of two with one key the later. -> how many were taken.

        `instead_of`: digests of records that go.
        """
        if self.path.suffix == LINES:
            raise OptionError(
                f"{self.path} is read, and not written",
                facts="a file of lines cannot be written by several at once",
                fix="name a file such as records.sqlite; --export writes its lines",
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(str(error)) from error
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            gone = [(digest,) for digest in instead_of]
            database.executemany("DELETE FROM records WHERE digest = ?", gone)
            before = database.total_changes
            database.executemany(_ADD, [(r.digest, r.target, r.written, r.line) for r in records])
            taken = database.total_changes - before
            database.execute("COMMIT")
        return taken

    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        if self.path.is_dir():
            raise OptionError(f"{self.path} is a folder", fix="name a file for records")
        try:
            # no transaction begins by itself
            with closing(
                sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
            ) as database:
                self._prepare(database)
                yield database
        except sqlite3.OperationalError as error:  # a full disk, no rights, others who never end
            raise self._unusable(str(error)) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Make the table in a new file, and check that another one is ours."""
        if _pragma(database, "application_id") != APPLICATION:
            database.execute("BEGIN IMMEDIATE")  # of many who come to a new file one makes it
            if _pragma(database, "application_id") != APPLICATION:
                if _pragma(database, "schema_version"):
                    raise self._damaged("it is a database of something else")
                database.execute(_TABLE)
                database.execute(f"PRAGMA application_id = {APPLICATION}")
                database.execute(f"PRAGMA user_version = {FORMAT}")
            database.execute("COMMIT")
        version = _pragma(database, "user_version")
        if version > FORMAT:
            raise ArtifactError(
                "the records were written by a newer version",
                where=str(self.path),
                facts=f"they have version {version}, this reads {FORMAT}",
                fix="update tilewright, or name another file",
            )
        if _pragma(database, "journal_mode") != "wal":
            database.execute("PRAGMA journal_mode = WAL")  # readers and a writer do not wait

    def _unusable(self, facts: str) -> OptionError:
        return OptionError(
            "the records cannot be read or written",
            where=str(self.path),
            facts=facts,
            fix="name another file with --records or TILEWRIGHT_RECORDS",
        )

    def _damaged(self, facts: str) -> ArtifactError:
        return ArtifactError(
            "this is no file of tuning records, or it is damaged",
            where=str(self.path),
            facts=facts,
            fix="delete it or name another one; tuning makes records again",
        )


def _pragma(database: sqlite3.Connection, name: str):
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def lines_of(path: Path | None, target: str | None) -> tuple[list[str], list[str]]:
    """The lines that may decide what is built for a target: shipped ones, and a file's.

    Those for all targets where none is named.
    """
    files = sorted(SHIPPED.glob(f"{target or '*'}{LINES}"))
    own = [] if path is None else RecordFile(path).lines(target)
    return [line for file in files for line in RecordFile(file).lines()], own


def digest_of(path: Path | None, target: str) -> str:
    """Hash of those lines: what is built with other records is another program. Of none, ""."""
    found = lines_of(path, target)
    return hashlib.sha256(repr(found).encode()).hexdigest() if any(found) else ""
