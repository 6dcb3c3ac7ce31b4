"""The whole suite in one command: services, lint, types, imports, tests, and a summary.

`make test` runs this. Every stage runs even if one before it failed; the exit status is
non-zero if any did. What we started is stopped in the end, however it ends, unless
KEEP_SERVICES=1. The last line is pytest's own closing line.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.suites import SUITES

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
_CLOSING = re.compile(r"^(=+ )?(\d+ [a-z]+|no tests ran).* in [\d.]+s\b")


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
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            status = self._pytest({"OUTBOX_TEST_REPORT": str(report), "PYTHONUNBUFFERED": "1"})
            suites = json.loads(report.read_text()) if report.exists() else {}
        self.results += by_suite(suites)
        if status:
            self.results.append(Result("pytest", False, f"exit status {status}"))

    def _pytest(self, extra: dict[str, str]) -> int:
        """In a session of its own: Ctrl-C reaches us, and we pass it on exactly once."""
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", "--durations=25", *self.pytest_arguments],
            cwd=ROOT,
            env={**os.environ, **extra},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            self._echo(process)
        return process.returncode

    def _echo(self, process: subprocess.Popen[str]) -> None:
        """Pass pytest's output on as it comes, and remember its closing line."""
        if process.stdout is None:
            return
        try:
            for text in process.stdout:
                sys.stdout.write(text)
                sys.stdout.flush()
                if _CLOSING.match(text.rstrip()):
                    self.closing = text.rstrip()
        except BaseException:
            process.send_signal(signal.SIGINT)  # so that fixtures clean up behind themselves
            _wait_or_kill(process)
            raise

    def _summary(self) -> None:
        _headline("summary")
        print("\n".join(self.equipment.lines()), end="\n\n")
        for result in self.results:
            print(f"{result.verdict:<4} {result.name:<14} {result.text}")
        print(f"\n{self.closing}", flush=True)


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
        process.communicate(timeout=60)
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
