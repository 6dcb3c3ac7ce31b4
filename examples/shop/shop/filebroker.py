"""A directory as the broker: kombu's filesystem transport, with writes that are all or nothing.

kombu creates a message's file first and fills it afterwards: a consumer may find it empty, and a
killed publisher may leave it empty. Here the file gets its name when it is complete.

What is published goes through `out`, a symbolic link to the directory that workers read. The demo
takes the broker away by putting a plain file in its place.
"""

import os
import uuid
from pathlib import Path
from time import monotonic_ns
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps

TRANSPORT_ALIASES["filebroker"] = "shop.filebroker:Transport"


class Channel(filesystem.Channel):
    """Complete files only, in the order in which they were published."""

    def _put(self, queue: str, payload: Any, **_: Any) -> None:
        name = f"{monotonic_ns():020}_{uuid.uuid4()}.{queue}.msg"
        target = Path(self.data_folder_out, name)
        try:
            unfinished = target.with_suffix(".part")
            unfinished.write_text(dumps(payload))
            unfinished.rename(target)
        except OSError as exc:
            raise ChannelError(f"Can't write {target}") from exc


class Transport(filesystem.Transport):
    Channel = Channel
    polling_interval = 0.1


def options(home: Path) -> dict[str, Any]:
    """The directories of a broker that lives in `home`, created where they are missing."""
    queue, out = home / "queue", home / "out"
    queue.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(out):
        out.symlink_to(queue)
    return {
        "data_folder_in": str(queue),
        "data_folder_out": str(out),
        "control_folder": str(home / "control"),
    }
