"""How long a newcomer waits for the two demos, and what `coadapt demo` finds.

`python -m benchmarks.service.demos` clones this checkout, with an empty cache of pip,
and runs the commands of the README: `pip install '.[service]'`, then `coadapt demo`
twice; then `make demo` with an empty and with a warm cache. `--without-pytorch` leaves
`make demo` out. Stores the times in benchmarks/results/demos.json, with the load of the
machine before each.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.stored import ROOT, load_results, store_results

RESULTS = Path(__file__).parents[1] / "results" / "demos.json"
RUNS = 2
TIMED = Mapping[str, Any]


def main() -> None:
    """Time the demos in a fresh clone and store what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-pytorch", action="store_true")
    asked = parser.parse_args()
    figures = load_results(RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        figures["coadapt demo"] = numpy_demo(Path(folder))
        if not asked.without_pytorch:
            figures["make demo"] = {
                "empty cache": pytorch_demo(Path(folder)),
                "warm cache": pytorch_demo(Path(folder)),
            }
    store_results(RESULTS, figures)
    print(json.dumps(figures, indent=1))


def numpy_demo(folder: Path) -> TIMED:
    """Install the service's extra into a new environment, and run `coadapt demo`."""
    clone = fresh_clone(folder / "numpy")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    programs = environment / "bin"
    install = [str(programs / "pip"), "install", "--quiet", ".[service]"]
    installed = timed(install, clone, folder / "cache of numpy")
    command = [str(programs / "coadapt"), "demo", "--json"]
    runs = [numpy_run(command, clone) for _ in range(RUNS)]
    return {"install": installed, "runs": runs}


def numpy_run(command: Sequence[str], clone: Path) -> TIMED:
    """Run the demo once; return its time and the mean of each policy, s."""
    load = os.getloadavg()[0]
    run = subprocess.run(command, cwd=clone, check=True, capture_output=True, text=True)
    found = json.loads(run.stdout)
    took_s = {}
    for side in found["sides"]:
        jobs = {job["name"]: job["took_s"] for job in side["jobs"]}
        took_s[side["policy"]] = {"mean": side["mean_s"], **jobs}
    return {"wall_s": found["wall_s"], "load": round(load, 1), "took_s": took_s}


def pytorch_demo(folder: Path) -> TIMED:
    """Time `make demo` in a new clone; the first call begins with an empty cache."""
    clone = fresh_clone(folder / "pytorch")
    return timed(["make", "demo"], clone, folder / "cache of pytorch")


def fresh_clone(at: Path) -> Path:
    """Clone this checkout's last commit to `at`; a clone that is there is replaced."""
    shutil.rmtree(at, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(at)], check=True)
    return at


def timed(command: Sequence[str], cwd: Path, cache: Path) -> TIMED:
    """Run `command` with pip's cache at `cache`; return its time and the load before.

    Raises CalledProcessError, with the end of the output printed, if it fails.
    """
    load = os.getloadavg()[0]
    environment = {**os.environ, "PIP_CACHE_DIR": str(cache)}
    began = time.monotonic()
    run = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    wall_s = time.monotonic() - began
    if run.returncode:
        print(run.stdout[-2_000:], run.stderr[-2_000:], file=sys.stderr)
        run.check_returncode()
    return {"wall_s": round(wall_s, 1), "load": round(load, 1)}


if __name__ == "__main__":
    main()
