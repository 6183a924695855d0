"""The bandwidth of checkpoints in an object store, saved and loaded, beside that of a
plain file.

`python -m benchmarks.trainer.object_store` (needs: pip install 'coadapt[objects]'
'moto[server]'): 25 million parameters in float32, in turns: a file on this disk,
flushed; an S3 server on loopback in a process of its own (moto, in Python: the slowest
part); and fsspec's store in this process's memory, which leaves our own work,
serialising and checksums. Results go to benchmarks/results/object_store.json.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.stored import store_results
from coadapt.objects import ObjectFolder
from coadapt.train.checkpoint.object_store import ObjectStore
from coadapt.train.checkpoint.store import CheckpointStore

RESULTS = Path(__file__).parents[1] / "results" / "object_store.json"
# 25 million numbers
NUM_TENSORS = 6
WIDTH = 2048
START_S = 120.0
KEYS = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": "something",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_bucket() -> Iterator[str]:
    """Run a server that speaks S3, let this process find it, and give the URL of a
    bucket in it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.environ |= {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    try:
        _wait_for(f"http://127.0.0.1:{port}/moto-api/")
        import s3fs

        s3fs.S3FileSystem().mkdir("training")
        yield "s3://training"
    finally:
        server.kill()
        server.wait()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=START_S).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def once(
    store: CheckpointStore | ObjectStore, state: dict[str, object]
) -> dict[str, float]:
    """Save `state` and load it; return the seconds of each, and those of this process's
    processor.
    """
    began = time.perf_counter()
    cpu = time.process_time()
    store.save(state)
    saved = time.perf_counter()
    saved_cpu = time.process_time()
    name = store.newest()
    assert name is not None
    with store.reading(name) as reading:
        reading.state()
    return {
        "save_s": saved - began,
        "save_cpu_s": saved_cpu - cpu,
        "load_s": time.perf_counter() - saved,
        "load_cpu_s": time.process_time() - saved_cpu,
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    state: dict[str, object] = {
        str(number): torch.randn(WIDTH, WIDTH) for number in range(NUM_TENSORS)
    }
    size_mb = NUM_TENSORS * WIDTH * WIDTH * 4 / 1e6
    found: dict[str, list[dict[str, float]]] = {"file": [], "s3": [], "memory": []}
    with tempfile.TemporaryDirectory() as folder, s3_bucket() as bucket:
        stores = {
            "file": CheckpointStore(Path(folder)),
            "s3": ObjectStore(ObjectFolder(f"{bucket}/a")),
            "memory": ObjectStore(ObjectFolder("memory://training/a")),
        }
        for _ in range(turns):
            for name, store in stores.items():
                found[name].append(once(store, state))
    medians = {
        name: {key: statistics.median(each[key] for each in rows) for key in rows[0]}
        for name, rows in found.items()
    }
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "size_mb": round(size_mb),
        "turns": turns,
        "ways": {
            name: {
                **{key: round(value, 3) for key, value in row.items()},
                "save_mb_per_s": round(size_mb / row["save_s"]),
                "load_mb_per_s": round(size_mb / row["load_s"]),
            }
            for name, row in medians.items()
        },
    }
    store_results(RESULTS, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
