"""Where a sizer runs: inside the loop. Sizers look at each job once and are quick."""

from coadapt.core.commands import Size
from coadapt.core.events import SizingFailed, SizingReady
from coadapt.policies.sizers import Sizer
from coadapt.runtime.ports import Post
from coadapt.runtime.solver import describe


class InlineSizer:
    """Answers each Size at once. An error of the sizer becomes SizingFailed."""

    def __init__(self, sizer: Sizer) -> None:
        self._sizer = sizer

    def __call__(self, command: Size, post: Post) -> None:
        at = command.view.at
        try:
            sizing = self._sizer.size(command.view)
        except Exception as error:  # noqa: BLE001 - a sizer is outside, like a policy
            post(SizingFailed(at=at, number=command.number, error=describe(error)))
            return
        post(SizingReady(at=at, number=command.number, sizing=sizing))
