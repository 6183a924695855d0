"""Random schedules of changes in place, undisturbed or with a replica killed at a
random moment.

`python -m tests.train.schedules --changes 20 --kills 50 --out FILE` goes through many,
`--strategy fsdp` with sharded models; the suite has a few.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.train.replicas import Elastic
from tests.train.rescale.test_elastic import assert_same_parameters, assert_same_run
from tests.train.toy import Toy, run_toy

NUM_CHANGES = 5
REPLICAS_MAX = 4
# What a run may take to notice that a replica is gone.
NOTICE_MAX_S = 30.0


def few_and_many(toy: Toy, **envs: str) -> None:
    """Go from 1 replica to 3, 2, 4 and 1 in place, and check that nothing came of
    it.
    """
    run = Elastic(run_toy, toy, Path(toy.folder), **envs)
    try:
        run.start(1)
        for num_replicas in (3, 2, 4, 1):
            leaving = run.order(num_replicas)
            run.await_done()
            assert run.done(), run.outputs()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
        _end_soon(toy)
        assert run.join(run.members) == [0], run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)


def random_changes(
    folder: Path, seed: int, stream: str = "", strategy: str = "ddp"
) -> float:
    """Go through random numbers of replicas, with random survivors, and check that
    nothing came of it.

    Survivors may be none, and the first replica may be among those that leave. Returns
    0: nothing was killed.
    """
    draw = random.Random(seed)
    optimizer = draw.choice(["sgd", "adamw"])
    toy = Toy(
        folder=str(folder),
        num_epochs=30,
        pace_s=0.03,
        optimizer=optimizer,
        stream=stream,
    )
    toy = replace(toy, strategy=strategy)
    run = Elastic(run_toy, toy, folder)
    try:
        run.start(draw.randint(1, REPLICAS_MAX))
        for _ in range(NUM_CHANGES):
            num_replicas = draw.randint(1, REPLICAS_MAX)
            present = len(run.members)
            num_kept = draw.randint(0, min(num_replicas, present))
            leaving = run.order(
                num_replicas, keep=draw.sample(range(present), num_kept)
            )
            run.await_done()
            assert run.done(), (
                f"over before the change to generation "
                f"{run.generation}\n{run.outputs()}"
            )
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
            time.sleep(draw.uniform(0.0, 0.1))
        _end_soon(toy)
        assert run.join(run.members) == [0] * len(run.members), run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)
    return 0.0


def killed_at_random(folder: Path, seed: int, strategy: str = "ddp") -> float:
    """Kill one of three replicas around a change, start again from the checkpoint,
    check the parameters.

    Returns the seconds until the last of the others had ended.
    """
    draw = random.Random(seed)
    toy = Toy(
        folder=str(folder),
        num_epochs=30,
        pace_s=0.03,
        checkpoint_every_s=0.2,
        double=True,
    )
    toy = replace(toy, strategy=strategy)
    run = Elastic(run_toy, toy, folder)
    try:
        run.start(3)
        while not (run.control_dir / "capable").exists():
            time.sleep(0.01)
        num_replicas = draw.choice([2, 4])
        run.order(num_replicas, keep=draw.sample(range(3), 2))
        _await_moment(run, draw)
        victim = draw.choice(run.alive())
        run.processes[victim].kill()
        time.sleep(draw.choice([0.0, 1.0]))
        noticed_s = run.end(NOTICE_MAX_S)
        _end_soon(toy)
        run.start(3)
        assert run.join(run.members) == [0, 0, 0], run.outputs()
    finally:
        run.kill()
    assert_same_parameters(toy)
    return noticed_s


def _end_soon(toy: Toy) -> None:
    """Let the replicas no longer wait in their passes."""
    (Path(toy.folder) / "fast").touch()


def _await_moment(run: Elastic, draw: random.Random) -> None:
    """Half of the time during the change itself, else anywhere before or after it."""
    if draw.random() < 0.5:
        joiners = [
            name for name in run.members if name.startswith(f"{run.generation}-")
        ]
        while not all((run.control_dir / f"{name}.ready").exists() for name in joiners):
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, 0.15))
    else:
        time.sleep(draw.uniform(0.0, 1.0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--strategy", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    failed: list[str] = []
    ends_s: list[float] = []
    cases: list[tuple[Callable[..., float], int]] = [
        (random_changes, seed) for seed in range(options.changes)
    ]
    cases += [(killed_at_random, seed) for seed in range(options.kills)]
    for check, seed in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                ends_s.append(check(Path(folder), seed, strategy=options.strategy))
                print(check.__name__, seed, "kept the promise", flush=True)
            except AssertionError as error:
                failed.append(f"{check.__name__} {seed}")
                print(failed[-1], error, flush=True)
    result = {
        "strategy": options.strategy,
        "schedules": options.changes,
        "kills": options.kills,
        "failed": failed,
        "longest_end_after_a_kill_s": round(max(ends_s, default=0.0), 2),
    }
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
