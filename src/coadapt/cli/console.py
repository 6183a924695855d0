"""Where pictures and tables go: the terminal as wide as it is, or a pipe with room for
whole sentences.
"""

import sys

from rich.console import Console

# A pipe has no width: grep should find whole lines there.
PIPE_WIDTH = 200


def make_console() -> Console:
    """Return the console on stdout."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
