"""A training script without training: it changes in place by the switchboard's files, as coadapt.train does.

It leaves `+name`, `=name generation rank` and `-name code` in the file `lives`. Files in its folder steer it:
`finish` ends the training, `slow` keeps those who join from being ready, `broken` makes them fail then, and
`deaf` has them ignore what they are told; `stuck` keeps a change from being done, `linger` those who leave
from ending, and `incapable` keeps it from changing at all.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from coadapt.model.contract_env import ENV_GENERATION, ENV_JOINING, ENV_RESCALE_DIR, EXIT_STOPPED
from coadapt.model.rescale import (
    CAPABLE_FILE,
    ORDER_FILE,
    RescaleOrder,
    begun_file,
    decided_file,
    done_file,
    member_name,
    ready_file,
)
from coadapt.model.wire import from_json

LOOK_S = 0.01
SAVE_S = 0.3

folder = Path()
board = Path(os.environ[ENV_RESCALE_DIR])
generation, rank = int(os.environ[ENV_GENERATION]), int(os.environ["RANK"])
me = member_name(generation, rank)
told_to_stop = threading.Event()


def say(text: str) -> None:
    with open(folder / "lives", "a") as lives:
        lives.write(text + "\n")


def order() -> RescaleOrder | None:
    path = board / ORDER_FILE
    return from_json(RescaleOrder, json.loads(path.read_text())) if path.exists() else None


def leave(code: int) -> None:
    time.sleep(SAVE_S if code == EXIT_STOPPED else 0.0)
    say(f"-{me} {code}")
    while (folder / "linger").exists():
        time.sleep(LOOK_S)
    sys.exit(code)


def enter(new: RescaleOrder) -> None:
    global generation, rank
    generation, rank = new.generation, new.members.index(me)
    while (folder / "stuck").exists():
        if told_to_stop.is_set() and os.environ.get(ENV_JOINING) == "1":
            leave(0)
        time.sleep(LOOK_S)
    say(f"={me} {generation} {rank}")
    if rank == 0:
        (board / done_file(generation)).touch()


def join() -> None:
    new = order()
    assert new is not None
    assert new.generation == generation
    while (folder / "slow").exists():
        if (folder / "broken").exists():
            raise RuntimeError("boom")
        if told_to_stop.is_set() and not (folder / "deaf").exists():
            leave(0)
        time.sleep(LOOK_S)
    (board / ready_file(me)).touch()
    while not (board / begun_file(generation)).exists():
        if told_to_stop.is_set():
            leave(0)
        time.sleep(LOOK_S)
    enter(new)


def change() -> None:
    new = order()
    if new is None or new.generation <= generation:
        return
    if rank == 0 and all((board / ready_file(name)).exists() for name in new.joiners):
        try:
            (board / decided_file(new.generation)).touch(exist_ok=False)
        except FileExistsError:
            return
        (board / begun_file(new.generation)).touch()
    if (board / begun_file(new.generation)).exists():
        if me not in new.members:
            leave(0)
        enter(new)


signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())
say(f"+{me}")
if os.environ.get(ENV_JOINING) == "1":
    join()
elif rank == 0 and not (folder / "incapable").exists():
    board.mkdir(exist_ok=True)
    (board / CAPABLE_FILE).touch()
while not (folder / "finish").exists():
    if told_to_stop.is_set():
        leave(EXIT_STOPPED)
    change()
    time.sleep(LOOK_S)
leave(0)
