"""Kill -9 of the scheduler, again and again, while it buys nodes, gives them back and
loses them: no job lost, none doubled, no node bought twice or forgotten.

    python -m tests.cli.node_kills --kills 20

The executor's record of its nodes is compared with the scheduler's state after each
restart, and both must be empty at the end. A restart lasts from the start of the
process to its answer.
"""

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from coadapt.cli.client import JsonObject, RefusedError, UnreachableError
from tests.cli.kills import Load, restart_s, verdict
from tests.cli.live_cluster import LiveCluster, until

MOST = 3
ENGINE = (
    "--offer",
    f"firm=1x1,most={MOST},provision=1",
    "--offer",
    f"spot=1x0.5,market=spot,most={MOST},provision=1",
    "--sizer",
    "demand(idle_s=1)",
    "--sizing",
    "1",
)
NOTICE_S = 3.0
MANY_ROUNDS = 1_000_000


class BuyingCluster(LiveCluster):
    """A scheduler that has only bought nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, policy="max-min", engine=ENGINE)

    def up(
        self, slots: int | None = None, *, round_s: int = 1, in_place: bool = True
    ) -> None:
        self._round_at_start = MANY_ROUNDS
        super().up(slots, round_s=round_s, in_place=in_place)

    @property
    def recorded(self) -> Mapping[str, JsonObject]:
        """The executor's nodes, ordered ones included."""
        path = self.state / "bought-nodes.json"
        if not path.exists():
            return {}
        return cast("dict[str, JsonObject]", json.loads(path.read_text())["nodes"])

    def known(self) -> set[str]:
        """Return the scheduler's nodes."""
        nodes = cast("list[JsonObject]", self.client.get("/v1/nodes")["nodes"])
        return {str(node["id"]) for node in nodes}

    def plans_were_made(self) -> bool:
        """Return whether a plan was made since the start, so that the next kill meets
        nodes and jobs that change.
        """
        round_number = cast(int, self.client.get("/v1/cluster?limit=0")["round"])
        self._round_at_start = min(self._round_at_start, round_number)
        return round_number > self._round_at_start + 1

    def agree(self) -> bool:
        """Return whether scheduler and executor know the same live nodes."""
        now = time.time()
        ready = {
            name
            for name, each in self.recorded.items()
            if cast(float, each["ready_at"]) <= now
        }
        return ready == self.known()


def take_nodes(cluster: BuyingCluster, over: threading.Event, seed: int) -> None:
    """Take nodes away now and then, half of them with a notice."""
    draw = random.Random(seed)
    while not over.wait(draw.uniform(1.0, 4.0)):
        in_s = draw.choice([0.0, NOTICE_S])
        try:
            nodes = sorted(cluster.known())
            if nodes:
                path = f"/v1/nodes/{draw.choice(nodes)}/notice"
                cluster.client.post(path, {"in_s": in_s})
                TAKEN["with notice" if in_s else "without notice"] += 1
        except (UnreachableError, RefusedError):
            continue


TAKEN: Counter[str] = Counter()


def check_limits(cluster: BuyingCluster) -> None:
    """Raise AssertionError if more nodes of an offer are recorded than there can be."""
    counts = Counter(name.split("-")[0] for name in cluster.recorded)
    assert all(count <= MOST for count in counts.values()), counts


def run(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Return how many promises were broken, by kind, and print the times."""
    draw = random.Random(seed)
    cluster = BuyingCluster(folder)
    times: list[float] = []
    over = threading.Event()
    try:
        cluster.up()
        load = Load(cluster=cluster, seed=seed)
        threads = [
            threading.Thread(target=load.run),
            threading.Thread(target=take_nodes, args=(cluster, over, seed)),
        ]
        for thread in threads:
            thread.start()
        for _ in range(kills):
            until(cluster.plans_were_made, "plans are made")
            time.sleep(draw.uniform(0.0, 5.0))
            cluster.kill()
            check_limits(cluster)
            times.append(restart_s(cluster))
            until(cluster.agree, "scheduler and executor know the same nodes")
        over.set()
        load.over.set()
        for thread in threads:
            thread.join()
        found = verdict(cluster, load)
        until(lambda: not cluster.recorded, "all nodes are given back")
        until(lambda: not cluster.known(), "the scheduler knows of no node")
        found["acknowledged"] = len(load.acknowledged)
        print(
            f"{kills} kills, {len(load.acknowledged)} jobs, nodes taken away: "
            f"{dict(TAKEN)}; restart min/median/max {min(times):.2f} "
            f"{statistics.median(times):.2f} {max(times):.2f} s"
        )
        made = json.loads((cluster.state / "bought-nodes.json").read_text())
        print(f"nodes ordered in all: {made['num_made']}")
        return found
    finally:
        over.set()
        cluster.close()


def check(found: Mapping[str, int]) -> None:
    """Raise AssertionError if a promise was broken."""
    broken = ("lost", "doubled", "not ended", "failed", "cancelled by nobody")
    assert not any(found[kind] for kind in broken), dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), given.kills, given.seed)
    print(dict(found))
    check(found)


if __name__ == "__main__":
    main()
