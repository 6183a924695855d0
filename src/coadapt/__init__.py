"""Coadapt: GPU count, batch size and learning rate of deep-learning jobs, chosen
together.

Importing this package loads neither torch nor a web server nor a solver.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coadapt.client import Client as Client

__version__ = "0.2.0"

__all__ = ["Client"]


def __getattr__(name: str) -> object:
    """Load what is exported once it is asked for: `import coadapt` stays light."""
    if name != "Client":
        raise AttributeError(f"module 'coadapt' has no attribute {name!r}")
    from coadapt.client import Client

    return Client
