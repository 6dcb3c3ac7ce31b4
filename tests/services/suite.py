"""The whole suite in one command: services, lint, types, imports, tests, and a summary.

`make test` runs this. Every stage runs even if one before it failed; the exit status is
non-zero if any did. All tests run in two processes of pytest side by side: one for the suites that
mostly wait for worker processes, one for the others. What we started is stopped in the end, however
it ends, unless KEEP_SERVICES=1. The last line is a closing line as pytest's own, of all tests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.suites import SUITES, TESTS

from . import ROOT
from .equipment import Equipment

BIN = Path(sys.executable).parent
STAGES: dict[str, list[str | Path]] = {
    "lint": [BIN / "ruff", "check", "--output-format=concise", "."],
    "format": [BIN / "ruff", "format", "--check", "--output-format=concise", "."],
    "types": [BIN / "mypy"],
    "imports": [BIN / "lint-imports", "--no-logo"],
}
NOTHING_RAN = "no tests ran"
WAITING = ("acceptance", "poison", "chaos")
"""Suites of real worker processes, which wait for these most of the time."""
_CLOSING = re.compile(r"^(=+ )?(\d+ [a-z]+|no tests ran).* in [\d.]+s\b")
_COUNTED = re.compile(r"(\d+) ([a-z]+)")


@dataclass
class Result:
    """How one stage ended, in words and as a verdict."""

    name: str
    passed: bool
    text: str

    @property
    def verdict(self) -> str:
        if self.text == NOTHING_RAN:
            return "none"
        return "ok" if self.passed else "FAIL"


class Suite:
    """Services first, then the stages, then the summary."""

    def __init__(self, pytest_arguments: list[str]) -> None:
        self.pytest_arguments = pytest_arguments
        self.equipment = Equipment()
        self.results: list[Result] = []
        self.closing = "pytest did not get to its closing line"

    def run(self) -> int:
        try:
            self.equipment.provide()
            self._judge_what_is_missing()
            self._check()
            self._test()
        finally:
            if os.environ.get("KEEP_SERVICES") != "1":
                self.equipment.put_away()
        self._summary()
        return 0 if all(result.passed for result in self.results) else 1

    def _judge_what_is_missing(self) -> None:
        missing = ", ".join(self.equipment.missing)
        if missing and os.environ.get("CI"):
            self.results.append(Result("all services", False, f"missing: {missing}"))

    def _check(self) -> None:
        for name, command in STAGES.items():
            _headline(name)
            began = time.monotonic()
            status = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
            seconds = time.monotonic() - began
            text = f"{'FAILED' if status.returncode else 'passed'} in {seconds:.1f} s"
            self.results.append(Result(name, not status.returncode, text))

    def _test(self) -> None:
        _headline("tests")
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            runs = [
                PytestRun(arguments, Path(folder, f"{number}.json"))
                for number, arguments in enumerate(self._arguments())
            ]
            try:
                for run in runs:
                    run.start(live=run is runs[0])
                statuses = [run.wait() for run in runs]
            except BaseException:
                for run in runs:
                    run.interrupt()  # so that fixtures clean up behind themselves
                raise
            suites = {name: tally for run in runs for name, tally in run.tallies().items()}
        self.closing = closing_line([run.closing for run in runs], time.monotonic() - began)
        self.results += by_suite(suites)
        for status in filter(None, statuses):
            self.results.append(Result("pytest", False, f"exit status {status}"))

    def _arguments(self) -> list[list[str]]:
        """Of each pytest: one for what was asked for, and two for everything."""
        if self.pytest_arguments:
            return [self.pytest_arguments]
        waiting = [str(TESTS / name) for name in WAITING]
        return [[f"--ignore={path}" for path in waiting], waiting]

    def _summary(self) -> None:
        _headline("summary")
        print("\n".join(self.equipment.lines()), end="\n\n")
        for result in self.results:
            print(f"{result.verdict:<4} {result.name:<14} {result.text}")
        print(f"\n{self.closing}", flush=True)


class PytestRun:
    """One process of pytest, in a session of its own: Ctrl-C reaches us, and we pass it on once."""

    def __init__(self, arguments: list[str], report: Path) -> None:
        self.closing = "pytest did not get to its closing line"
        self._arguments, self._report = arguments, report
        self._live = True
        self._lines: list[str] = []
        self._process: subprocess.Popen[str]

    def start(self, *, live: bool) -> None:
        """Start it. Its output is shown as it comes if `live`, and otherwise when it has ended."""
        self._live = live
        report = {"OUTBOX_TEST_REPORT": str(self._report), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "--durations=25", *self._arguments],
            cwd=ROOT,
            env={**os.environ, **report},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self) -> int:
        """Its exit status."""
        self._reader.join()
        if not self._live:
            sys.stdout.writelines(self._lines)
            sys.stdout.flush()
        return self._process.wait()

    def interrupt(self) -> None:
        if hasattr(self, "_process") and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            _wait_or_kill(self._process)

    def tallies(self) -> dict[str, dict[str, float]]:
        """The tests by suite and outcome."""
        found: dict[str, dict[str, float]] = {}
        if self._report.exists():
            found = json.loads(self._report.read_text())
        return found

    def _read(self) -> None:
        """Remember the closing line; pytest would stop at a full pipe."""
        for text in self._process.stdout or ():
            if self._live:
                sys.stdout.write(text)
                sys.stdout.flush()
            else:
                self._lines.append(text)
            if _CLOSING.match(text.rstrip()):
                self.closing = text.rstrip()


def closing_line(lines: list[str], seconds: float) -> str:
    """That of a single run, or one with the sums of several."""
    if len(lines) == 1:
        return lines[0]
    counts: Counter[str] = Counter()
    for line in lines:
        if not _CLOSING.match(line):
            return line
        for number, outcome in _COUNTED.findall(line.rpartition(" in ")[0]):
            counts[outcome] += int(number)
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return f" {text or NOTHING_RAN} in {seconds:.2f}s ".center(80, "=")


def by_suite(tallies: dict[str, dict[str, float]]) -> list[Result]:
    """A result for every suite of the table, and for what is in none."""
    names = [*SUITES, *sorted(set(tallies) - set(SUITES))]
    return [_suite_result(name, tallies.get(name)) for name in names]


def _suite_result(name: str, tally: dict[str, float] | None) -> Result:
    if not tally:
        return Result(name, True, NOTHING_RAN)
    seconds = tally.pop("seconds")
    text = ", ".join(f"{int(count)} {outcome}" for outcome, count in sorted(tally.items()))
    return Result(name, not {"failed", "errors"} & set(tally), f"{text} in {seconds:.1f} s")


def _wait_or_kill(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(timeout=60)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()


def _headline(text: str) -> None:
    print(f"\n--- {text} {'-' * (72 - len(text))}", flush=True)


def _interrupted(number: int, frame: object) -> None:
    """SIGTERM ends us as Ctrl-C does: with what we started stopped."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        sys.exit(Suite(sys.argv[1:]).run())
    except KeyboardInterrupt:
        sys.exit("interrupted; what was started has been stopped")
