"""How long the step loop stands still for a checkpoint: written beside training, and
written at once.

`python -m benchmarks.trainer.checkpoint`: a model with AdamW on the CPU; the two ways
take turns. Results go to benchmarks/results/checkpoint.json.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.stored import store_results
from coadapt.train.checkpoint.store import CheckpointStore
from coadapt.train.checkpoint.writer import BackgroundWriter

RESULTS = Path(__file__).parents[1] / "results" / "checkpoint.json"
# 25 million parameters
WIDTH = 2048
NUM_LAYERS = 6


def main(argv: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--no-store", action="store_true", help="leave benchmarks/results as it is"
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, WIDTH)).square().mean().backward()
    optimizer.step()
    blocked: list[float] = []
    blocked_cpu: list[float] = []
    written: list[float] = []
    at_once: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder))
        writer = BackgroundWriter(store)
        for _ in range(options.turns):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            began_at = time.perf_counter()
            cpu_at = time.thread_time()
            writer.write(state)
            blocked.append(time.perf_counter() - began_at)
            blocked_cpu.append(time.thread_time() - cpu_at)
            writer.wait()
            written.append(time.perf_counter() - began_at)
            began_at = time.perf_counter()
            writer.write_now(state)
            at_once.append(time.perf_counter() - began_at)
        size = max(path.stat().st_size for path in Path(folder).iterdir())
    result = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "file_mb": round(size / 1e6),
        "blocked_ms": round(statistics.median(blocked) * 1e3, 1),
        "blocked_cpu_ms": round(statistics.median(blocked_cpu) * 1e3, 1),
        "written_after_ms": round(statistics.median(written) * 1e3, 1),
        "at_once_ms": round(statistics.median(at_once) * 1e3, 1),
        "turns": options.turns,
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}"
        ),
        "torch": torch.__version__,
    }
    if not options.no_store:
        store_results(RESULTS, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
