"""Executors are found by name, and their options are read from text."""

import sys
from pathlib import Path

import pytest

from coadapt.core.events import NodeJoined, NodeLost
from coadapt.executors import (
    EXECUTORS,
    Connect,
    Host,
    executor_names,
    executor_options,
    prepare_executor,
    summary,
)
from coadapt.executors.processes.cluster import node_events
from coadapt.executors.processes.executor import ProcessExecutor
from coadapt.model import InputError, Node


def theirs(
    *,
    text: str = "",
    number: float = 1.0,
    flag: bool = False,
    names: tuple[str, ...] = (),
    most: int | None = 3,
) -> Connect:
    """An executor of somebody else's.

    With more to say.
    """
    seen.append(
        {"text": text, "number": number, "flag": flag, "names": names, "most": most}
    )
    return lambda host: ProcessExecutor(None, host)  # type: ignore[arg-type]  # never run


seen: list[dict[str, object]] = []
THEIRS = f"{__name__}:theirs"


def test_the_local_executor_has_its_row(tmp_path: Path) -> None:
    assert executor_names()[0] == "local"
    assert executor_options("local")["slots"] is None
    executor = prepare_executor("local", {"slots": "3"})(Host(state_dir=tmp_path))
    posted: list[object] = []
    executor.announce({"gone": Node(id="gone", num_gpus=1)}, posted.append)
    lost, joined = posted
    assert isinstance(lost, NodeLost)
    assert isinstance(joined, NodeJoined)
    assert (lost.node, joined.node.num_gpus, joined.node.gpu_type) == ("gone", 3, "cpu")
    assert executor.rescales_in_place
    assert executor.adopted() == []


@pytest.mark.parametrize(
    ("options", "option", "value"),
    [
        ({"text": 3}, "text", "3"),
        ({"number": "2.5"}, "number", 2.5),
        ({"number": 2}, "number", 2.0),
        ({"flag": "yes"}, "flag", True),
        ({"flag": False}, "flag", False),
        ({"names": "A, B"}, "names", ("A", "B")),
        ({"names": ["A", "B"]}, "names", ("A", "B")),
        ({"most": None}, "most", None),
        ({"most": "7"}, "most", 7),
    ],
)
def test_options_are_read_from_text_and_from_plain_values(
    options: dict[str, object], option: str, value: object
) -> None:
    prepare_executor(THEIRS, options)  # type: ignore[arg-type]  # plain values, as a file has them
    assert seen[-1][option] == value
    assert type(seen[-1][option]) is type(value)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("locla", {}, "--executor: got 'locla'; allowed: local"),
        ("no_such_module:theirs", {}, "a function that can be imported"),
        (f"{__name__}:seen", {}, "a function that takes options"),
        (
            "local",
            {"slot": "3"},
            r"executor local, option slot: got '3'; allowed: slots=None.*did you mean slots\?",
        ),
        (
            "local",
            {"slots": "many"},
            "executor local, option slots: got 'many'; allowed: a whole number",
        ),
        ("local", {"slots": "0"}, "--slots: got 0; allowed: 1"),
        (
            THEIRS,
            {"flag": "perhaps"},
            "option flag: got 'perhaps'; allowed: true or false",
        ),
        (THEIRS, {"number": True}, "option number: got True; allowed: a number"),
    ],
)
def test_what_is_not_allowed_is_named(
    name: str, options: dict[str, object], text: str
) -> None:
    with pytest.raises(InputError, match=text) as caught:
        prepare_executor(name, options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_an_installed_distribution_adds_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may add a name, but not take one of ours."""
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        f"[coadapt.executors]\nours = {THEIRS}\nlocal = {THEIRS}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert executor_names() == (*EXECUTORS, "ours")
    assert summary("ours") == "An executor of somebody else's."
    assert executor_options("ours")["most"] == 3
    assert "slots" in executor_options("local")


def test_without_ray_its_executor_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "coadapt.executors.ray.cluster", raising=False)
    with pytest.raises(InputError, match=r"pip install 'coadapt\[ray\]'"):
        prepare_executor("ray", {})


def test_the_core_hears_only_of_differences() -> None:
    here = Node(id="here", num_gpus=2)
    there = Node(id="there", num_gpus=2)
    assert node_events({"here": here}, [here], 1.0) == []
    assert node_events({"here": there, "old": there}, [here, there], 1.0) == [
        NodeLost(at=1.0, node="old"),
        NodeJoined(at=1.0, node=here),
        NodeJoined(at=1.0, node=there),
    ]
