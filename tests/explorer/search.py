"""Every sequence of choices, once: depth first, by playing again from the beginning.

A play asks `choose(n)` wherever things may go on in n ways, and must be deterministic otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class Choices:
    """Answers as told, and from there on with the first way."""

    def __init__(self, told: list[int]) -> None:
        self._told = told
        self._taken: list[tuple[int, int]] = []

    def choose(self, ways: int) -> int:
        """One of `ways` ways, as a number from 0."""
        if ways == 1:
            return 0
        position = len(self._taken)
        choice = self._told[position] if position < len(self._told) else 0
        self._taken.append((choice, ways))
        return choice

    def following(self) -> list[int] | None:
        """What to tell the next play; None after the last one."""
        while self._taken:
            choice, ways = self._taken.pop()
            if choice + 1 < ways:
                return [*(each for each, _ in self._taken), choice + 1]
        return None


def plays(play: Callable[[Choices], T]) -> Iterator[T]:
    """The outcomes of all plays."""
    told: list[int] | None = []
    while told is not None:
        choices = Choices(told)
        yield play(choices)
        told = choices.following()
