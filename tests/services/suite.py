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
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import (
    HOME,
    NAMES,
    PROGRAMS,
    ROOT,
    TITLES,
    Service,
    debian,
    docker,
    finder,
    private,
    programs,
)

if TYPE_CHECKING:
    from types import FrameType

BIN = Path(sys.executable).parent
STAGES: dict[str, list[str | Path]] = {
    "lint": [BIN / "ruff", "check", "."],
    "format": [BIN / "ruff", "format", "--check", "."],
    "types": [BIN / "mypy"],
    "imports": [BIN / "lint-imports", "--no-logo"],
}
SUITES = ("unit", "services", "contract", "integration", "acceptance")
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
        self.services: list[Service] = []
        self.programs: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.results: list[Result] = []
        self.closing = "pytest did not get to its closing line"

    def run(self) -> int:
        try:
            self._provide()
            self._check()
            self._test()
        finally:
            self._stop()
        self._summary()
        return 0 if all(result.passed for result in self.results) else 1

    def _provide(self) -> None:
        only_private = os.environ.get("PRIVATE_SERVICES") == "1"
        for name in NAMES:
            try:
                found = finder.provide(name, _say, only_private=only_private)
            except finder.MissingServiceError as error:
                self.missing[TITLES[name]] = str(error)
                continue
            self.services.append(found)
            os.environ.update(found.environment())
            _say(f"{TITLES[name]} {found.version} at {found.address} ({found.found})")
        for name in NAMES:
            self._provide_server_programs(name)
        for name in PROGRAMS:
            self._provide_program(name)
        in_ci = bool(os.environ.get("CI"))
        if self.missing and in_ci:
            self.results.append(
                Result("all services", False, f"missing: {', '.join(self.missing)}")
            )

    def _provide_server_programs(self, name: str) -> None:
        """For the tests that mistreat a server: that one must be theirs."""
        if not private.possible(name) and debian.possible():
            try:
                debian.install(debian.SERVERS[name], _say)
            except RuntimeError as error:
                _say(str(error))
        if not private.possible(name):
            reason = "its server program is not installed; tests that stop the server need it"
            self.missing[f"private {name}"] = reason

    def _provide_program(self, name: str) -> None:
        try:
            path = debian.install_program(name, _say)
        except RuntimeError as error:
            path = None
            _say(str(error))
        if path is None:
            self.missing[name] = "the program is not installed"
        else:
            self.programs[name] = f"{programs.version_of(path)}, {path}"

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
        HOME.mkdir(exist_ok=True)
        report = HOME / f"report-{os.getpid()}.json"
        environment = {**os.environ, "OUTBOX_TEST_REPORT": str(report), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "pytest", *self.pytest_arguments]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            self._echo(process)
        suites = json.loads(report.read_text()) if report.exists() else {}
        report.unlink(missing_ok=True)
        for name in [*SUITES, *sorted(set(suites) - set(SUITES))]:
            self.results.append(_suite_result(name, suites.get(name)))
        if process.returncode:
            self.results.append(Result("pytest", False, f"exit status {process.returncode}"))

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

    def _stop(self) -> None:
        if os.environ.get("KEEP_SERVICES") == "1":
            return
        for service in self.services:
            if service.pids:
                private.stop(service)
        if any(service.found == docker.FOUND for service in self.services):
            docker.stop()

    def _summary(self) -> None:
        _headline("summary")
        for service in self.services:
            where = f"at {service.address}, {service.found}"
            print(f"{TITLES[service.name]:<14} {service.version} {where}")
        for name, text in self.programs.items():
            print(f"{name:<14} {text}")
        for name, reason in self.missing.items():
            consequence = "a failure in CI" if os.environ.get("CI") else "its tests were SKIPPED"
            print(f"{name:<14} MISSING, {consequence}: {reason}")
        print()
        for result in self.results:
            print(f"{result.verdict:<4} {result.name:<14} {result.text}")
        print(f"\n{self.closing}", flush=True)


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


def _say(text: str) -> None:
    print(f"services: {text}", flush=True)


def _headline(text: str) -> None:
    print(f"\n--- {text} {'-' * (72 - len(text))}", flush=True)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends us as Ctrl-C does: with what we started stopped."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        sys.exit(Suite(sys.argv[1:]).run())
    except KeyboardInterrupt:
        sys.exit("interrupted; what was started has been stopped")
