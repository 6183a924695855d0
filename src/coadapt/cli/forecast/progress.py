"""How many futures are computed, on a terminal, while a command waits for them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def shown_progress() -> Iterator[Callable[[int, int], None]]:
    """Yield what is called with the number of futures computed, and of all.

    The bar is on stderr, and goes when the answer comes. Without a terminal there is
    none.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        line = bar.add_task("futures", total=None)

        def show(num_computed: int, num_wanted: int) -> None:
            bar.update(line, completed=num_computed, total=num_wanted)

        yield show
