"""python -m coadapt.sim.faults [--mixed] --seed N: tell the whole story of one seed, or
which fail.
"""

import argparse
import sys

from coadapt.sim.faults.fault_run import Seen, run_seed
from coadapt.sim.faults.invariants import InvariantError
from coadapt.sim.faults.mixed import draw_mixed
from coadapt.sim.faults.scenario import draw_scenario


def main(arguments: list[str]) -> int:
    """Tell the story of one seed, or say which of many fail; return 0, or 1 if one
    does.
    """
    parser = argparse.ArgumentParser(prog="python -m coadapt.sim.faults.fault_run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--count", type=int, default=1, help="so many seeds, without their stories"
    )
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="of the second family: two GPU types, two racks, shared GPUs",
    )
    given = parser.parse_args(arguments)
    draw = draw_mixed if given.mixed else draw_scenario
    num_failed = 0
    reports = []
    for seed in range(given.seed, given.seed + given.count):
        try:
            if given.count == 1:
                sys.stdout.write(f"{draw(seed)}\n")
            survived = run_seed(
                seed, tell=_write if given.count == 1 else None, mixed=given.mixed
            )
            reports.append(survived)
            if given.count == 1:
                sys.stdout.write(f"{survived}\n")
        except InvariantError as error:
            num_failed += 1
            sys.stdout.write(f"FAILED {error}\n")
    sys.stdout.write(f"{given.count - num_failed} of {given.count} seeds survived\n")
    if given.mixed:
        _tell_what_was_met([report.seen for report in reports])
    return int(num_failed > 0)


def _tell_what_was_met(seen: list[Seen]) -> None:
    met = {
        "two jobs on one GPU": sum(each.num_pairs > 0 for each in seen),
        "both GPU types": sum(len(each.gpu_types) > 1 for each in seen),
        "both racks": sum(len(each.racks) > 1 for each in seen),
        "a script that changed its batch": sum(
            len(each.own_batches) > 1 for each in seen
        ),
    }
    for what, count in met.items():
        sys.stdout.write(f"{count:5} met {what}\n")


def _write(at: float, text: str) -> None:
    sys.stdout.write(f"{at:10.2f}  {text}\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
