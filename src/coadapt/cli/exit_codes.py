"""What the verbs' exit codes mean; docs/operate.md has the same table."""

EXIT_FAILED = 1  # no scheduler answers, or it refused the token
EXIT_INPUT = 2  # a mistake in what was given
EXIT_JOB_FAILED = 3  # a job that was waited for failed or was cancelled
EXIT_BROKEN = (
    70  # EX_SOFTWARE of sysexits.h: a bug, or a journal that cannot be written
)
EXIT_TIMEOUT = 124  # as timeout(1) says it
EXIT_INTERRUPTED = 130  # what shells report after Ctrl-C
