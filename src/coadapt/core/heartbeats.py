"""Finds jobs whose heartbeat timed out, in O(timed-out jobs)."""

# Jobs with the same timeout share one row, ordered by their last heartbeat. A heartbeat
# moves its job to the end of the row. So a search reads the head of each row, and stops
# at the first job that is still in time. Jobs have few different timeouts. If each job
# had its own, a search would read every job.

from coadapt.model.cluster import JobId


class HeartbeatTimeouts:
    """Jobs by the instant of their last heartbeat."""

    def __init__(self) -> None:
        self._rows: dict[float, dict[JobId, float]] = {}
        self._row_of: dict[JobId, dict[JobId, float]] = {}

    def record(self, job: JobId, timeout_s: float, at: float) -> None:
        """Record a heartbeat of `job` at instant `at` (s). The job times out
        `timeout_s` later.

        `at` is not earlier than any recorded heartbeat, unless this heartbeat is
        recorded already. A job keeps the timeout of its first record.
        """
        row = self._row_of.get(job)
        if row is None:
            row = self._row_of[job] = self._rows.setdefault(timeout_s, {})
        elif row[job] == at:
            return
        else:
            del row[job]
        row[job] = at

    def forget(self, job: JobId) -> None:
        """Remove a job, if it is known."""
        row = self._row_of.pop(job, None)
        if row is not None:
            del row[job]

    def timed_out(self, at: float) -> list[JobId]:
        """Return the jobs whose timeout is over at instant `at` (s)."""
        self._rows = {timeout_s: row for timeout_s, row in self._rows.items() if row}
        found: list[JobId] = []
        for timeout_s, row in self._rows.items():
            for job, heard_at in row.items():
                if at - heard_at < timeout_s:
                    break
                found.append(job)
        return found
