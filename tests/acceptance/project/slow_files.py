"""kombu's filesystem transport as a broker that takes its time: some milliseconds per message.

Importing this module puts it in the place of the real one. A stop then surely comes in the middle
of a batch, however fast the machine is.
"""

from __future__ import annotations

import time
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem


class Channel(filesystem.Channel):  # type: ignore[misc]
    def _put(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.005)
        super()._put(*args, **kwargs)


class Transport(filesystem.Transport):  # type: ignore[misc]
    Channel = Channel


TRANSPORT_ALIASES["filesystem"] = f"{__name__}:Transport"
