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
from coadapt.train.env import Options, params
from coadapt.train.loading.loader import ElasticLoader
from coadapt.train.loading.validation import ValidationLoader
from coadapt.train.noise.scaling_rules import BatchScale, Scaled, ScalingRule, legw
from coadapt.train.run import Run, init
from coadapt.train.samples.sharded_stream import ShardedStream
from coadapt.train.session import Progress

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
    "params",
]
