"""A training script with one bug out of several: `python -m tests.train.bugs BUG`."""

import os
import signal
import sys
import threading

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct

NUM_SAMPLES = 480
BATCH_SIZE = 8
BUG_AT = 10


def train(bug: str) -> None:
    torch.set_num_threads(1)
    run = ct.init(checkpoint_dir=os.devnull if bug == "no disk" else None)
    torch.manual_seed(0)
    num_samples = 3 if bug == "short" else NUM_SAMPLES
    data = TensorDataset(torch.randn(num_samples, 4), torch.randn(num_samples, 1))
    net = nn.Linear(4, 1)
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    model, optimizer = run.prepare(net, sgd)
    if bug == "unwrapped":
        model = net
        optimizer = sgd
    if bug == "bare model":
        model = net
    loader = run.loader(data, batch_size=BATCH_SIZE, shuffle=True)
    for _ in run.epochs(2):
        for index, (x, y) in enumerate(loader):
            if bug == f"skips {index}" and run.rank == 1:
                # as a loop does that swallows an exception, or leaves out a bad batch
                continue
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            if bug == "nan" and index > BUG_AT:
                loss = loss * float("nan")
            if bug != "no backward":
                loss.backward()
            if index == BUG_AT:
                break_here(bug, run)
            if bug != "no step":
                optimizer.step()
        if bug.startswith("leaves epochs") and run.rank == int(bug[-1]):
            break
    if bug.startswith("leaves epochs, closes"):
        run.close()
    if run.is_first:
        print("done", flush=True)


def break_here(bug: str, run: ct.Run) -> None:
    rank = run.rank
    if bug == "closes" and rank == 1:
        try:
            raise ValueError("boom at last")
        finally:
            run.close()
    if bug == "all" or (bug == "one" and rank == 1):
        raise ValueError(f"boom in {rank}")
    if bug == "leaves" and rank == 1:
        sys.exit(0)
    if bug == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if bug == "told":
        tell_of_errors()


def tell_of_errors() -> None:
    try:
        raise ValueError("got over it")
    except ValueError:
        sys.excepthook(*sys.exc_info())

    def fail() -> None:
        raise ValueError("this ends in a thread")

    threading.excepthook = lambda args: sys.excepthook(
        args.exc_type, args.exc_value, args.exc_traceback
    )  # type: ignore[arg-type]  # there is one
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


if __name__ == "__main__":
    train(sys.argv[1])
