"""What a consumer has done, in a database of its own: an event that comes again does nothing.

The work and the event's id are one transaction. CloudEvents: source and id together are unique.
"""

import sqlite3
from pathlib import Path

TABLES = """
CREATE TABLE IF NOT EXISTS seen (source TEXT, id TEXT, PRIMARY KEY (source, id));
CREATE TABLE IF NOT EXISTS parcels (number INTEGER);
"""


class Inbox:
    def __init__(self, path: str | Path) -> None:
        self._database = sqlite3.connect(path)
        self._database.executescript(TABLES)

    def pack(self, source: str, event_id: str, number: int) -> None:
        """Do the work of an event, unless it was done before."""
        try:
            with self._database:
                self._database.execute("INSERT INTO seen VALUES (?, ?)", (source, event_id))
                self._database.execute("INSERT INTO parcels VALUES (?)", (number,))
        except sqlite3.IntegrityError:
            print(f"order {number} came again", flush=True)
        else:
            print(f"order {number} is packed", flush=True)
