"""What the demo prints: acts, remarks, and claims that were observed."""

import os
import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = float(os.environ.get("DEMO_PATIENCE", "60"))
COLOURED = (sys.stdout.isatty() and "NO_COLOR" not in os.environ) or "FORCE_COLOR" in os.environ
CODES = {"bold": 1, "dim": 2, "green": 32, "red": 31, "yellow": 33}


class ClaimFailedError(Exception):
    """A claim of the demo was not observed."""


def paint(text: str, colour: str) -> str:
    return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if COLOURED else text


class Story:
    """Acts, remarks and claims."""

    def __init__(self) -> None:
        self.acts = 0
        self.claims = 0

    def act(self, title: str) -> None:
        self.acts += 1
        self._print(f"\n{paint(f'{self.acts}. {title}', 'bold')}")

    def tell(self, text: str) -> None:
        self._print(f"   {paint(text, 'dim')}")

    def command(self, text: str) -> None:
        self._print(f"   {paint('$', 'dim')} {text}")

    def claim(self, text: str, *, seen: object) -> None:
        """Print it if it was observed; end the demo if not."""
        if not seen:
            self._print(f"   {paint('✗', 'red')} {text}")
            raise ClaimFailedError(text)
        self.claims += 1
        self._print(f"   {paint('✓', 'green')} {text}")

    def note(self, text: str) -> None:
        self._print(f"   {paint('!', 'yellow')} {text}")

    def _print(self, text: str) -> None:
        print(text, flush=True)


def eventually(condition: Callable[[], T], pause: float = 0.005) -> T:
    """The first true value of `condition()`, or its last value after `PATIENCE` seconds."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return value
