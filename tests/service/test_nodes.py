"""Nodes over HTTP: listed, set aside, taken back."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from coadapt.service.app import create_app
from tests.service.in_process import TOKEN, InProcess

WHY = "3 ends by error in a row on it"


class Keeper:
    def __init__(self) -> None:
        self.aside = {"gone-bad": WHY}

    def take_back(self, node: str) -> bool:
        return self.aside.pop(node, None) is not None


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    run = InProcess(tmp_path)
    service = replace(run.service, nodes=Keeper())
    with run.turning():
        yield TestClient(
            create_app(service), headers={"Authorization": f"Bearer {TOKEN}"}
        )


def test_nodes_are_listed_with_the_reason_of_those_set_aside(
    client: TestClient,
) -> None:
    here = {
        "id": "here",
        "num_gpus": 4,
        "num_gpus_used": 0.0,
        "gpu_type": "cpu",
        "rack": "",
        "offer": "",
        "leaving": "",
        "aside": None,
    }
    assert client.get("/v1/nodes").json() == {
        "nodes": [{"id": "gone-bad", "aside": WHY}, here],
        "buying": None,
    }


def test_one_is_taken_back_once(client: TestClient) -> None:
    assert client.post("/v1/nodes/gone-bad/take-back").json() == {"id": "gone-bad"}
    assert [node["id"] for node in client.get("/v1/nodes").json()["nodes"]] == ["here"]
    answer = client.post("/v1/nodes/gone-bad/take-back")
    assert answer.status_code == 404
    assert "no node 'gone-bad' is set aside" in answer.text
    assert client.post("/v1/nodes/here/take-back").status_code == 404
