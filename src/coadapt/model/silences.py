"""Who has been silent for longer than his patience: found without a look at everybody who has not."""

# Jobs with the same patience stand in one row, in the order in which they were last heard of; whoever is
# heard of goes to its end. So who asks looks at the heads of the rows, and at nobody behind the first who may
# still be silent. Jobs have few different patiences. If each had its own, it would be a look at each job.

from coadapt.model.cluster import JobId


class Silences:
    """Jobs by when they were last heard of."""

    def __init__(self) -> None:
        self._rows: dict[float, dict[JobId, float]] = {}
        self._row_of: dict[JobId, dict[JobId, float]] = {}

    def hear(self, job: JobId, patience_s: float, at: float) -> None:
        """Take in that `job`, which may be silent for `patience_s`, was last heard of at `at` (s).

        No other job was heard of later, unless `at` is known already. Its patience stays what it is.
        """
        row = self._row_of.get(job)
        if row is None:
            row = self._row_of[job] = self._rows.setdefault(patience_s, {})
        elif row[job] == at:
            return
        else:
            del row[job]
        row[job] = at

    def forget(self, job: JobId) -> None:
        """Let go of a job, if it is known."""
        row = self._row_of.pop(job, None)
        if row is not None:
            del row[job]

    def too_long(self, at: float) -> list[JobId]:
        """Return the jobs whose patience is over at `at` (s)."""
        self._rows = {patience_s: row for patience_s, row in self._rows.items() if row}
        found: list[JobId] = []
        for patience_s, row in self._rows.items():
            for job, heard_at in row.items():
                if at - heard_at < patience_s:
                    break
                found.append(job)
        return found
