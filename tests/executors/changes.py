"""Random orders to one job of the local executor, each answered in one way only,
whatever comes in between.

python -m tests.executors.changes --seeds 20    goes through more than the suite does
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from coadapt.core.commands import JobCommand, RetractRescale
from coadapt.core.events import Outcome, ReplicasKept, ReplicasStarted
from tests.contracts.executor_contract import until
from tests.executors.elastic_site import Stage, staged
from tests.executors.test_local import end_of

NUM_ORDERS = 8
# Orders follow each other within the time in which a change comes about.
GAP_MAX_S = 0.25
COUNTS = ((1, 0), (2, 0), (1, 1), (0, 1), (2, 1), (0, 2))


class RandomOrders:
    """One job under random orders; executors come and go, and events of all of them
    come together.
    """

    def __init__(self, site: Stage, seed: int) -> None:
        self._site = site
        self._random = random.Random(seed)
        self._executor, self._inbox = site.start(1)
        self._answers: dict[int, type] = {1: ReplicasStarted}
        self._size = 1
        self.told = Counter[str]()

    def run(self) -> Counter[str]:
        """Return how the orders were answered."""
        for generation in range(2, NUM_ORDERS + 2):
            self._order(generation)
        self._site.set("finish")
        end = end_of(self._inbox)
        assert (end.generation, end.outcome) == (NUM_ORDERS + 1, Outcome.SUCCEEDED)
        return self.told

    def _order(self, generation: int) -> None:
        rng = self._random
        site = self._site
        flags = [flag for flag in ("slow", "stuck") if rng.random() < 0.5]
        for flag in flags:
            site.set(flag)
        counts = rng.choice(COUNTS)
        retracts = rng.choice((0, 0, 1, 2))
        orders: list[JobCommand] = [site.rescale(*counts, generation=generation)]
        orders += [RetractRescale(job="a", generation=generation)] * retracts
        if rng.random() < 0.2:
            rng.shuffle(orders)
        for order in orders:
            self._send(order)
        fails = not retracts and "slow" in flags
        if fails:
            flags.remove("slow")
            site.set("broken")
        for flag in flags:
            (site.folder / flag).unlink()
        until(lambda: self._answer(generation) is not None)
        for flag in ("slow", "broken") * fails:
            (site.folder / flag).unlink()
        self._send(orders[-1])
        answer = self._answer(generation)
        self.told[f"{answer.__name__} after {retracts} retractions"] += 1
        self._size = sum(counts) if answer is ReplicasStarted else self._size
        until(lambda: len(site.pids("replica")) == self._size)

    def _send(self, order: JobCommand) -> None:
        self._executor.execute(order, self._inbox.post)
        time.sleep(self._random.uniform(0.0, GAP_MAX_S))
        if self._random.random() < 0.2:
            self._executor = self._site.executor()
            self._executor.execute(order, self._inbox.post)

    def _answer(self, generation: int) -> type | None:
        """Return how the order of that generation was answered; every order is in one
        way only.
        """
        for event in list(self._inbox.events):
            assert isinstance(event, ReplicasStarted | ReplicasKept), event
            assert self._answers.setdefault(event.generation, type(event)) is type(
                event
            ), event
        return self._answers.get(generation)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.executors.changes")
    parser.add_argument("--seeds", type=int, default=20)
    told = Counter[str]()
    for seed in range(parser.parse_args(arguments).seeds):
        with (
            tempfile.TemporaryDirectory() as folder,
            pytest.MonkeyPatch.context() as patch,
            staged(Path(folder), patch) as site,
        ):
            told += RandomOrders(site, seed).run()
        sys.stdout.write(f"seed {seed}: {dict(sorted(told.items()))}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
