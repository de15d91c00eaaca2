"""Pack Flower's database, so that nothing that Flower has deleted stays readable in it.

SQLite leaves deleted rows in free pages and in its write-ahead log, where a backup would find the exact statistics of
a run with central noise.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

PATIENCE_SECONDS = 30.0


def pack_database(database: Path) -> str | None:
    """Rewrite the database without its deleted rows; return None, or the reason if that failed.

    The SuperLink may be running: SQLite's locks make each wait for the other, briefly, since the file is small.
    """
    if not database.exists():
        return None
    try:
        with closing(sqlite3.connect(database, timeout=PATIENCE_SECONDS, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            # Into the file, and the log cut to nothing: it holds every page that was written since the last time.
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        return f"{type(error).__name__}: {error}"
    return "its write-ahead log is in use" if busy else None
