"""`python stop_at.py STEP SCRIPT ARGUMENT...` sends it SIGTERM after its STEP-th
optimiser step.
"""

import os
import runpy
import signal
import sys

from torch.optim.optimizer import register_optimizer_step_post_hook


class Alarm:
    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


register_optimizer_step_post_hook(Alarm(int(sys.argv[1])))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
