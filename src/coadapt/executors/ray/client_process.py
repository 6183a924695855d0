"""Ray's client in a process of its own, which answers questions about the cluster.

Ray's library ends its own process a minute after the cluster's head is gone. So the
scheduler does not load it, but asks this process: `python -m … FD ADDRESS`, with one
line of JSON on FD per question.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ray

from coadapt.executors.ray.client import (
    CONNECT_S,
    ENV_AUTH_MODE,
    Answer,
    is_address,
    reaches,
)
from coadapt.executors.ray.proxy import CONNECTING

# The address that means the cluster of RAY_ADDRESS, or else this machine's.
AUTO = "auto"
# The address that means this machine's cluster, which is started if there is none.
START = "start"
START_S = 120.0
# The states of actors that hold resources. An actor holds them before Ray counts it as
# alive. Ray also lists dead actors.
LIVING = ("ALIVE", "PENDING_CREATION")
# The fields of Ray's answers that the executor uses: plain values.
NODE_FIELDS = (
    "NodeID",
    "NodeName",
    "NodeManagerAddress",
    "NodeManagerHostname",
    "NodeManagerPort",
    "Resources",
)
ACTOR_FIELDS = ("Name", "ActorClassName", "Address")


def main(fd: str, address: str) -> None:
    """Connect to the cluster at `address`, then answer questions until the other end
    closes the socket.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with socket.socket(fileno=int(fd)) as line, line.makefile("rw") as stream:
        _say(stream, _answer(partial(_connect, address)))
        for question in stream:
            given = json.loads(question)
            ask = QUESTIONS[given.pop("ask")]
            _say(stream, _answer(partial(ask, **given)))


def _say(stream: Any, answer: Answer) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _answer(question: Callable[[], Answer]) -> Answer:
    """Return the answer to `question`, or its error in the field `error`."""
    try:
        return question()
    except Exception as error:  # noqa: BLE001  # Ray's errors are of many types
        return {"error": (str(error).splitlines() or [type(error).__name__])[0]}


def _connect(address: str) -> Answer:
    if address == START:
        context = _join_or_start()
    elif address == AUTO:
        context = _join()
    else:
        _check_token(address)
        context = ray.init(address, **CONNECTING)
    return {
        "address": str(context.address_info["address"]),
        "own_address": str(ray.util.get_node_ip_address()),
        # Ray sets it itself if it finds the cluster and a token on this machine.
        "auth_mode": os.environ.get(ENV_AUTH_MODE, ""),
    }


def _check_token(address: str) -> None:
    """Raise ConnectionError if the cluster at `address` does not accept our token.

    `ray.init` would try for 20 s, and then say no more than that it cannot connect.
    """
    refused = getattr(ray.exceptions, "AuthenticationError", None)
    if refused is None or not is_address(address):  # old versions have no tokens
        return
    try:
        ray._raylet.GcsClient(address=address)
    except refused:
        message = (
            "the cluster asks for Ray's token: set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN_PATH if the token is not in ~/.ray/auth_token"
        )
        raise ConnectionError(message) from None
    except Exception:  # noqa: BLE001  # `ray.init` says what is wrong
        return


def _join() -> Any:
    """Connect to the cluster that Ray finds. Raises ConnectionError.

    A head that was killed leaves its address behind in a file. `ray.init` would try
    for minutes to reach it.
    """
    address = ray._private.services.canonicalize_bootstrap_address_or_die(AUTO)
    if not reaches(address, CONNECT_S):
        message = f"nothing answers at {address}, where Ray looks for its cluster"
        raise ConnectionError(message)
    return ray.init(AUTO, **CONNECTING)


def _join_or_start() -> Any:
    """Connect to this machine's Ray cluster, or start one, which outlives this
    process.
    """
    try:
        return _join()
    except ConnectionError:
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--port=0",
        ]
        # A pipe would never end, because the daemons that Ray starts keep it open.
        with tempfile.TemporaryFile() as said:
            try:
                subprocess.run(
                    command, check=True, stdout=said, stderr=said, timeout=START_S
                )
            except subprocess.SubprocessError as error:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                why = lines[-1] if lines else str(error)
                raise ConnectionError(f"Ray does not start: {why}") from None
    return _join()


def _look() -> Answer:
    """Return the nodes that Ray counts as alive, the draining nodes, and the resources
    that actors hold.
    """
    return {
        "nodes": [
            _plain(found, NODE_FIELDS) for found in ray.nodes() if found["Alive"]
        ],
        "draining": _or_nothing(ray._private.state.state.get_draining_nodes),
        **_held(),
    }


def _plain(found: Answer, fields: Sequence[str]) -> Answer:
    return {name: found[name] for name in fields if name in found}


def _held() -> Answer:
    """Return each node's free resources and the living actors, or why that is unknown.

    These calls are in ray._private, because the public ones sum over nodes.
    """
    try:
        actors: list[Answer] = []
        for state in LIVING:
            found = ray._private.state.actors(actor_state_name=state)
            actors.extend(_plain(actor, ACTOR_FIELDS) for actor in found.values())
        available = ray._private.state.available_resources_per_node()
    except Exception as error:  # noqa: BLE001  # Ray's internals may raise anything
        return {"available": {}, "actors": [], "why_unknown": str(error)}
    return {"available": available, "actors": actors, "why_unknown": ""}


def _or_nothing(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except Exception:  # noqa: BLE001  # as above
        return {}


def _want(bundles: list[dict[str, float]]) -> Answer:
    """Ask Ray's autoscaler for resources."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)
    return {}


QUESTIONS: Mapping[str, Callable[..., Answer]] = {"look": _look, "want": _want}


if __name__ == "__main__":
    main(*sys.argv[1:])
