"""First thing in a worker with another wall clock: the library that shifts it breaks `time.sleep`.

It refuses the system call behind it (EINVAL), whatever the offset. Waiting in select() works.
"""

import select
import time


def sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = sleep
