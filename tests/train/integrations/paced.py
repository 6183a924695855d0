"""`python paced.py SCRIPT ARGUMENT...` waits a little after each optimiser step, until
`fast` is there.
"""

import runpy
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook


def wait(*_: object) -> None:
    if not Path("fast").exists():
        time.sleep(0.5)


register_optimizer_step_post_hook(wait)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
