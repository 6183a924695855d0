"""A training script without training: by the notes of model/rescale.py it rescales as
coadapt.train does.

It leaves `+name`, `=name generation rank` and `-name code` in the file `lives`. Files
in its folder steer it: `finish` ends the training, `slow` keeps those who join from
being ready, `broken` makes them fail then, and `deaf` has them ignore what they are
told; `stuck` keeps a change from being done, `linger` those who leave from ending, and
`incapable` keeps it from changing at all.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from coadapt.model.contract_env import (
    ENV_CONTROL_TOKEN,
    ENV_CONTROL_URL,
    ENV_GENERATION,
    ENV_JOINING,
    ENV_RESCALE_DIR,
    EXIT_STOPPED,
)
from coadapt.model.rescale import (
    CAPABLE_FILE,
    CONTROL_PATH,
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
PATIENCE_S = 10.0  # as long as ControlClient has it
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as it asks, too

folder = Path()
generation = int(os.environ[ENV_GENERATION])
rank = int(os.environ["RANK"])
me = member_name(generation, rank)
told_to_stop = threading.Event()


class Files:
    """The control directory."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def read(self, name: str) -> str | None:
        path = self._folder / name
        try:
            return path.read_text()
        except FileNotFoundError:  # not written yet, or gone with its generation
            return None

    def write(self, name: str) -> None:
        self._folder.mkdir(exist_ok=True)
        (self._folder / name).touch()

    def create(self, name: str) -> bool:
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Network:
    """The same over HTTP, asked anew each time."""

    def __init__(self, url: str) -> None:
        self._url = url + CONTROL_PATH

    def read(self, name: str) -> str | None:
        notes = json.loads(self._ask("GET", "?after=0"))["notes"]
        return None if name not in notes else str(notes[name])

    def write(self, name: str) -> None:
        self._ask("PUT", f"/{name}")

    def create(self, name: str) -> bool:
        try:
            self._ask("POST", f"/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 409:
                return False
            raise
        return True

    def _ask(self, method: str, path: str) -> bytes:
        body = None if method == "GET" else b""
        headers = {"Authorization": f"Bearer {os.environ[ENV_CONTROL_TOKEN]}"}
        request = urllib.request.Request(self._url + path, body, headers, method=method)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer: bytes = DIRECT.open(request, timeout=10.0).read()
            except urllib.error.HTTPError:
                raise
            except OSError:  # its launcher may have a successor in a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)
            else:
                return answer


notes: Files | Network
if ENV_RESCALE_DIR in os.environ:
    notes = Files(os.environ[ENV_RESCALE_DIR])
else:
    notes = Network(os.environ[ENV_CONTROL_URL])


def say(text: str) -> None:
    with open(folder / "lives", "a") as lives:
        lives.write(text + "\n")


def order() -> RescaleOrder | None:
    text = notes.read(ORDER_FILE)
    return None if text is None else from_json(RescaleOrder, json.loads(text))


def leave(code: int) -> None:
    time.sleep(SAVE_S if code == EXIT_STOPPED else 0.0)
    say(f"-{me} {code}")
    while (folder / "linger").exists():
        time.sleep(LOOK_S)
    sys.exit(code)


def enter(new: RescaleOrder) -> None:
    global generation, rank  # noqa: PLW0603  # the state of this small script
    generation = new.generation
    rank = new.members.index(me)
    while (folder / "stuck").exists():
        if told_to_stop.is_set() and os.environ.get(ENV_JOINING) == "1":
            leave(0)
        time.sleep(LOOK_S)
    say(f"={me} {generation} {rank}")
    if rank == 0:
        notes.write(done_file(generation))


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
    notes.write(ready_file(me))
    while notes.read(begun_file(generation)) is None:
        if told_to_stop.is_set():
            leave(0)
        time.sleep(LOOK_S)
    enter(new)


def change() -> None:
    new = order()
    if new is None or new.generation <= generation:
        return
    if rank == 0 and all(
        notes.read(ready_file(name)) is not None for name in new.joiners
    ):
        if not notes.create(decided_file(new.generation)):
            return
        notes.write(begun_file(new.generation))
    if notes.read(begun_file(new.generation)) is not None:
        if me not in new.members:
            leave(0)
        enter(new)


signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())
say(f"+{me}")
if os.environ.get(ENV_JOINING) == "1":
    join()
elif rank == 0 and not (folder / "incapable").exists():
    notes.write(CAPABLE_FILE)
while not (folder / "finish").exists():
    if told_to_stop.is_set():
        leave(EXIT_STOPPED)
    change()
    time.sleep(LOOK_S)
leave(0)
