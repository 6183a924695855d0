"""python -m coadapt.sim.faults [--mixed|--bought] --seed N: tell the whole story of one
seed, or which fail.
"""

import argparse
import sys

from coadapt.sim.faults.fault_run import DRAW, Seen, run_seed
from coadapt.sim.faults.invariants import InvariantError
from coadapt.sim.faults.scenario import Family


def main(arguments: list[str]) -> int:
    """Tell the story of one seed, or say which of many fail; return 0, or 1 if one
    does.
    """
    parser = argparse.ArgumentParser(prog="python -m coadapt.sim.faults.fault_run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--count", type=int, default=1, help="number of seeds, without their stories"
    )
    families = parser.add_mutually_exclusive_group()
    families.add_argument(
        "--mixed",
        action="store_true",
        help="of the second family: two GPU types, two racks, shared GPUs",
    )
    families.add_argument(
        "--bought",
        action="store_true",
        help="of the third family: nodes that are bought, prices, limits of costs",
    )
    given = parser.parse_args(arguments)
    family = Family.MIXED if given.mixed else Family.FIRST
    family = Family.BOUGHT if given.bought else family
    num_failed = 0
    reports = []
    for seed in range(given.seed, given.seed + given.count):
        try:
            if given.count == 1:
                sys.stdout.write(f"{DRAW[family](seed)}\n")
            survived = run_seed(
                seed, tell=_write if given.count == 1 else None, family=family
            )
            reports.append(survived)
            if given.count == 1:
                sys.stdout.write(f"{survived}\n")
        except InvariantError as error:
            num_failed += 1
            sys.stdout.write(f"FAILED {error}\n")
    sys.stdout.write(f"{given.count - num_failed} of {given.count} seeds survived\n")
    seen = [report.seen for report in reports]
    if family is Family.MIXED:
        _tell_mixed(seen)
    if family is Family.BOUGHT:
        _tell_bought(seen)
    return int(num_failed > 0)


def _tell_bought(seen: list[Seen]) -> None:
    met = {
        "nodes bought": sum(each.num_bought for each in seen),
        "nodes taken away": sum(each.num_taken for each in seen),
        "nodes given back": sum(each.num_given_back for each in seen),
        "jobs stopped for their max_cost": sum(each.num_max_cost for each in seen),
        "jobs that waited for a budget": sum(each.num_waited for each in seen),
    }
    for what, count in met.items():
        sys.stdout.write(f"{count:5} {what}\n")


def _tell_mixed(seen: list[Seen]) -> None:
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
