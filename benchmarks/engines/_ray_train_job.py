"""The training of benchmarks/engines/ray_engine.py as a job of Ray Train's own.

python -m benchmarks.engines._ray_train_job ADDRESS FOLDER MIN MAX

From nothing at each start, without checkpoints: to its advantage. A group of MIN to MAX
workers, a CPU each.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trainer._rescale_job import BATCH_SIZE, NUM_SAMPLES, Log, parts

LOOK_S = 1.0
STEPS_MAX = 1_000_000


def train(folder: str) -> None:
    """Train as `_rescale_job.train_plain` does, in a group that Ray Train has made."""
    torch.set_num_threads(1)
    log = Log(f"{folder}/steps-{os.getpid()}.jsonl")
    model, optimizer, data = parts(torch.device("cpu"))
    model = DistributedDataParallel(model)
    size = BATCH_SIZE // dist.get_world_size()
    for step in range(STEPS_MAX):
        x = data[step * size % (NUM_SAMPLES - size) :][0][:size]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        log.step(dist.get_world_size(), dist.get_rank(), step)


def main(address: str, folder: str, least: int, most: int) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(address, log_to_driver=False)
    elastic = {"elastic_resize_monitor_interval_s": LOOK_S} if least < most else {}
    trainer = TorchTrainer(
        lambda _: train(folder),
        train_loop_config={},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=(least, most) if least < most else most,
            resources_per_worker={"CPU": 1},
            **elastic,
        ),
        run_config=RunConfig(
            storage_path=f"{folder}/ray", failure_config=FailureConfig(max_failures=-1)
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
