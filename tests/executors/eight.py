"""The script of `jobs/eight.yaml`: a training of which every sample and every parameter
can be looked at.
"""

import os
from pathlib import Path

from coadapt.model.contract_env import ENV_CHECKPOINT_DIR
from tests.train.toy import Toy, final_parameters, plain_parameters, run_toy


def the_toy(folder: Path) -> Toy:
    """Return the training whose traces are left in `folder`."""
    return Toy(
        folder=str(folder), num_epochs=12, optimizer="adamw", double=True, pace_s=0.05
    )


def distance(folder: Path) -> float:
    """Return how far the parameters in `folder` are from a plain loop's, relative to
    the largest of each.

    Raises AssertionError where that is more than the tests of training allow, or where
    a step did not have its samples, each once and in order.
    """
    # The replicas need not import the test framework.
    from tests.train.rescale.test_elastic import assert_same_run

    toy = the_toy(folder)
    assert_same_run(toy)
    pairs = zip(final_parameters(folder), plain_parameters(toy), strict=True)
    return max(
        float((got - wanted).abs().max() / wanted.abs().max()) for got, wanted in pairs
    )


if __name__ == "__main__":
    run_toy(the_toy(Path(os.environ[ENV_CHECKPOINT_DIR])))
