"""Rewrite Flower's database, so that deleted rows cannot be read from the file any more.

SQLite leaves deleted rows in free pages and in its write-ahead log. A backup would then hold the exact statistics of
runs with central noise.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

PATIENCE_SECONDS = 30.0


def erase_deleted_rows(database: Path) -> str | None:
    """Rewrite the database without its deleted rows; return the reason if that failed, else None.

    The SuperLink may be running: SQLite's locks make the two processes wait for each other.
    """
    if not database.exists():
        return None
    try:
        with closing(sqlite3.connect(database, timeout=PATIENCE_SECONDS, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            # Empty the write-ahead log too: it holds every page that was written since the last checkpoint.
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        return f"{type(error).__name__}: {error}"
    return "its write-ahead log is in use" if busy else None
