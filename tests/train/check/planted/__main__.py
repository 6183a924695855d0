"""`python -m tests.train.check.planted [NAME...]`: all planted faults and all sound
scripts, as a table.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from coadapt.train.check.__main__ import Outcome, Settings, check
from coadapt.train.check.replicas import ScriptRun
from tests.train.check.planted.scripts import FAULTS, SOUND, Planted
from tests.train.forked_script import ForkedScript

TIMEOUT_S = 90.0


def checked(name: str, source: str) -> Outcome:
    """Return what the check says of a script: two changes, of which the second is a
    restart or in place.
    """
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        path = Path(folder) / f"{name.replace('-', '_')}.py"
        path.write_text(source)
        return check(
            Settings(
                command=(str(path),),
                replicas=3,
                changes=3,
                steps=40,
                timeout_s=TIMEOUT_S,
            )
        )


def is_named(planted: Planted, outcome: Outcome) -> bool:
    """Return whether the check named the cause, and with the words that help.

    What differs by design is named too, and is no fault: its exit code is 0.
    """
    cause = outcome.cause
    if cause is None:
        return False
    said = f"{cause.text} {cause.remedy}"
    return cause.kind in planted.kinds and all(word in said for word in planted.words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    ScriptRun.launch = staticmethod(ForkedScript)  # type: ignore[assignment]  # the same calls
    num_named = 0
    num_faults = 0
    alarms = []
    for planted in FAULTS:
        if names and planted.name not in names:
            continue
        began = time.monotonic()
        outcome = checked(planted.name, planted.source)
        num_faults += 1
        named = is_named(planted, outcome)
        num_named += named
        cause = outcome.cause
        said = "-" if cause is None else f"{cause.kind}: {cause.text} | {cause.remedy}"
        print(
            f"{'named' if named else 'MISSED':7} {planted.name:38} "
            f"{time.monotonic() - began:5.1f} s  {said} "
            f"{'' if named else outcome.problem}",
            flush=True,
        )
        if not named:
            for line in outcome.lines:
                print("    |", line)
            for finding in outcome.findings:
                print("    ", finding.what, finding.same, finding.text)
    for name, source in SOUND.items():
        if names and name not in names:
            continue
        began = time.monotonic()
        outcome = checked(name, source)
        alarm = outcome.code != 0
        alarms += [name] * alarm
        print(
            f"{'ALARM' if alarm else 'quiet':7} {name:38} "
            f"{time.monotonic() - began:5.1f} s  "
            f"{outcome.problem} {'' if outcome.cause is None else outcome.cause.text}",
            flush=True,
        )
        if alarm:
            for line in outcome.lines:
                print("    |", line)
            for finding in outcome.findings:
                print("    ", finding.what, finding.same, finding.text)
    print(
        f"named {num_named} of {num_faults}; false alarms: "
        f"{', '.join(alarms) or 'none'}"
    )
    return int(num_named < num_faults or bool(alarms))


if __name__ == "__main__":
    sys.exit(main())
