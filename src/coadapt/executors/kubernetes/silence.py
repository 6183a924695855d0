"""How long the API server has reported nothing of a pod to its proxy, and how that is
reported.
"""

import time
from collections.abc import Callable

from coadapt.executors.kubernetes.api import ApiError
from coadapt.executors.processes.elsewhere import note_unseen
from coadapt.executors.processes.records.generation_dir import GenerationDir

# A server that is restarted or upgraded is unreachable for less time, which is not
# reported.
SILENCE_S = 120.0


class ServerSilence:
    """Gets errors and answers of the server. It reports once that the server has been
    silent for long, and once that this is over.

    It reports to the replica's log, and by a note to the executor. A note that another
    proxy left counts too.
    """

    def __init__(
        self, lead: GenerationDir, member: str, say: Callable[[str], None]
    ) -> None:
        """lead: the generation whose launcher has started `member`. say: adds a line to
        its log.
        """
        self._lead = lead
        self._member = member
        self._say = say
        self._since: float | None = None
        self._noted = (self._lead.unseen / member).exists()

    def error(self, error: ApiError) -> None:
        """Note that the server did not answer, or refused, for example because of
        expired credentials.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not self._noted and now - self._since > SILENCE_S:
            why = (
                f"the API server has reported nothing about its pods for more than "
                f"{SILENCE_S:g} s: {error}"
            )
            self._note(f"its replicas cannot be seen, but may train on: {why}")

    def answer(self) -> None:
        """Note that the server reported something about the pod."""
        self._since = None
        if self._noted:
            self._note("")

    def _note(self, why: str) -> None:
        self._noted = bool(why)
        self._say(why or "the API server tells of its pod again")
        note_unseen(self._lead, self._member, why)
