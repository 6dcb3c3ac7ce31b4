"""`python -m tests.chaos --minutes 20 --seed 7 --report docs/chaos`, or `make chaos MINUTES=20`."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos import report
from tests.chaos.run import Run
from tests.chaos.world import World


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}: starting PostgreSQL, RabbitMQ, Redis and four workers", flush=True)
    with tempfile.TemporaryDirectory(prefix="outbox-chaos-") as folder:
        Path(folder).chmod(0o755)  # the servers run as users of their own
        try:
            with World(Path(folder), seed, rate=options.rate) as world:
                run = Run(world, seed, lambda text: print(text, flush=True), options.pause)
                outcome = run.rounds(options.minutes, options.rounds)
                paths = report.save(outcome, world, options.report)
            assert not outcome.broken, report.summary(outcome)
        except BaseException:
            _keep_logs(Path(folder), options.report / f"seed-{seed}-logs")
            raise
    print(f"\n{report.summary(outcome)}\nreport: {', '.join(map(str, paths))}")
    return 0


def _keep_logs(folder: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in (*folder.glob("*.log"), *folder.glob("producer.txt")):
        shutil.copy(file, target)
    print(f"logs: {target}", flush=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=1, help="least number of rounds")
    parser.add_argument("--seed", type=int, help="repeat the faults of an earlier run")
    parser.add_argument("--report", type=Path, default=Path("build/chaos"))
    parser.add_argument("--rate", type=float, default=100.0, help="calls per second, about")
    parser.add_argument("--pause", type=float, default=4.0, help="longest pause between faults, s")
    return parser.parse_args(arguments)


def _interrupted(number: int, frame: object) -> None:
    """SIGTERM ends us as Ctrl-C does: with what we started stopped."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    sys.exit(main(sys.argv[1:]))
