"""Elastic PyTorch training: a few changed lines around a plain loop; see docs/train.md.

Works alone, under torchrun, and under the scheduler.
"""

try:
    import torch as torch  # before the modules that cannot do without
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "coadapt.train needs PyTorch: pip install 'coadapt[train]'", name="torch"
    ) from None

from coadapt.model import BatchConfig, InputError, RescaleContract
from coadapt.train.env import Options
from coadapt.train.loader import ElasticLoader
from coadapt.train.run import Run, init
from coadapt.train.scaling import BatchScale, Scaled, ScalingRule, legw
from coadapt.train.session import Progress
from coadapt.train.sharded import ShardedStream
from coadapt.train.validation import ValidationLoader

__all__ = [
    "BatchConfig",
    "BatchScale",
    "ElasticLoader",
    "InputError",
    "Options",
    "Progress",
    "RescaleContract",
    "Run",
    "Scaled",
    "ScalingRule",
    "ShardedStream",
    "ValidationLoader",
    "init",
    "legw",
]
