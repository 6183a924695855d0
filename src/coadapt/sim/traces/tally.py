"""Counts the rows of a file: how many were read, left out (by reason) or mended."""

# One bad cell must not end the reading of a log with millions of rows, and no row may
# be lost without a message. So rows that cannot be read are counted by reason. If a log
# has a few of them, they are left out and reported. If there are more, the first of
# them is the error, with the count of all. In a table that a user wrote by hand, the
# first bad row is always the error.

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model import InputError

BAD_SHARE_MAX = 0.01  # of the rows of a log that may be bad


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How files are read. skip_bad: leave out all rows that cannot be read, whatever
    their number. whole_gpus: count a part of a GPU as a whole one.
    """

    skip_bad: bool = False
    whole_gpus: bool = False


@dataclass(slots=True)
class Tally:
    """The counts of one file's rows. bad_share_max: the largest allowed share of bad
    rows.
    """

    options: ReadOptions = field(default_factory=ReadOptions)
    bad_share_max: float = 0.0
    num_rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)
    _bad: Counter[str] = field(default_factory=Counter)
    _first: InputError | None = None

    def bad(self, what: str, error: InputError) -> None:
        """Count a row that cannot be read. what: the column that is wrong."""
        if self._first is None:
            self._first = error
        if self.bad_share_max == 0.0 and not self.options.skip_bad:
            raise error
        self.num_rows += 1
        self._bad[what] += 1

    def leave_out(self, why: str) -> None:
        """Count a row that is not a job, or that is left out."""
        self.num_rows += 1
        self.left_out[why] += 1

    def keep(self) -> None:
        """Count a row that is a job or a part of one."""
        self.num_rows += 1

    def close(self) -> None:
        """Raise the first error if more rows were bad than is allowed. Call this after
        the last row.
        """
        num_bad = self._bad.total()
        most = (
            self.num_rows
            if self.options.skip_bad
            else self.bad_share_max * self.num_rows
        )
        if num_bad <= most:
            self.left_out.update(
                {f"not readable: {what}": n for what, n in self._bad.items()}
            )
            return
        assert self._first is not None
        first = self._first
        counts = ", ".join(f"{what} {count}" for what, count in self._bad.most_common())
        raise InputError(
            first.field,
            first.value,
            f"{first.allowed}; {num_bad} of {self.num_rows} rows cannot be read "
            f"({counts}), "
            "--skip-bad leaves them out",
        )


def tally_text(
    num_jobs: int, num_rows: int, left_out: Mapping[str, int], mended: Mapping[str, int]
) -> str:
    """Return one line with the numbers of rows left out and mended, "" if there are
    none.
    """
    parts = [f"{count} left out ({why})" for why, count in sorted(left_out.items())]
    parts += [f"{count} mended ({how})" for how, count in sorted(mended.items())]
    return f"{num_rows} rows, {num_jobs} jobs: {', '.join(parts)}" if parts else ""
