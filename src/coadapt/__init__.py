"""Coadapt: GPU count, batch size and learning rate of deep-learning jobs, chosen
together.

Importing this package loads neither torch nor a web server nor a solver.
"""

__version__ = "0.2.0"
