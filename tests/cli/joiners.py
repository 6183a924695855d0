"""What keeps those who join a job in place waiting, or makes them fail, in tests: files
in its folder.
"""

import os
import time
from pathlib import Path

from coadapt.model.contract_env import ENV_JOINING

LOOK_S = 0.02


def obey(folder: str) -> None:
    """Return at once, unless this process is to join: not while `slow` is there, and
    never if `broken` is.
    """
    if os.environ.get(ENV_JOINING) != "1":
        return
    while (Path(folder) / "slow").exists():
        time.sleep(LOOK_S)
    if (Path(folder) / "broken").exists():
        raise RuntimeError("boom")
