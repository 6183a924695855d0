"""`coadapt.train.init` and the Run that it returns: the whole interface of a training
script.
"""

import atexit
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from coadapt.model import BatchConfig, GradStats, InputError
from coadapt.train.batch.limits import (
    Wanted,
    begin_sampling,
    resolve_limits,
    settle_batch,
)
from coadapt.train.batch.memory_search import MemoryWatch
from coadapt.train.checkpoint.loop_state import LoopState
from coadapt.train.checkpoint.per_sample import PerSample, explain_carried
from coadapt.train.checkpoint.saver import Saver, Stateful
from coadapt.train.checkpoint.store import FORMAT
from coadapt.train.env import Options, TrainConfig, read_config
from coadapt.train.exits.failures import EXIT_FAILED, FailureReporter, tell_input_errors
from coadapt.train.exits.stop import EXIT_UNSAVED, StopSignal, end_now, end_soon
from coadapt.train.group.gather import gather_rows
from coadapt.train.group.group import form_group, leave_group
from coadapt.train.group.pass_weights import explain_unlike
from coadapt.train.group.totals import whole_values
from coadapt.train.loading.fetch import named_options
from coadapt.train.loading.further import (
    Beside,
    FurtherLoader,
    order_beside,
    ratio_beside,
)
from coadapt.train.loading.loader import (
    DataSource,
    ElasticLoader,
    fetcher_for,
    order_of,
)
from coadapt.train.loading.own_order import find_sampler
from coadapt.train.loading.seeds import SeedSamples, as_list
from coadapt.train.loading.validation import ValidationLoader
from coadapt.train.report.reporter import HttpChannel, Reporter
from coadapt.train.report.telemetry import Telemetry, process_age_s
from coadapt.train.rescale.control_channel import find_channel
from coadapt.train.rescale.in_place import InPlaceRescaler
from coadapt.train.rescale.pause import Pause
from coadapt.train.rescale.rescaler import CheckpointRescaler, Rescaler
from coadapt.train.samples.sharded_stream import ShardedStream
from coadapt.train.session import Progress, Session
from coadapt.train.step_loop import StepLoop
from coadapt.train.wrappers.grad_scaler import ElasticScaler
from coadapt.train.wrappers.optimizer import ElasticScheduler
from coadapt.train.wrappers.timing import StepSample, timer_for
from coadapt.train.wrappers.trained import Preparation, build_pair
from coadapt.train.wrappers.unused import explain_refusal

logger = logging.getLogger(__name__)


def init(**options: Unpack[Options]) -> "Run":
    """Connect to the other replicas, if there are any, and return the run. `Options`
    has the arguments.

    Works alone (a script, a notebook), under torchrun, and under the scheduler. Raises
    InputError for a setting that is out of its range.
    """
    try:
        config = read_config(**options)
    except InputError:
        tell_input_errors()
        raise
    return Run(config)


class Run:
    """One training run, in this process. Made by `init`."""

    def __init__(self, config: TrainConfig) -> None:
        self._session = Session(config=config, group=form_group(config))
        self._stop = StopSignal(
            config.times.stop_timeout_s,
            listeners_dir=config.listeners_dir,
            member=config.place.member,
        )
        if config.keeps_checkpoints:
            self._stop.install()
        self._failures = FailureReporter(self._session, self._stop)
        self._failures.install()
        self._saver = Saver(self._session)
        timer = timer_for(self.device, self._keep)
        self._rescaler: Rescaler = CheckpointRescaler(
            self._session, self._saver, self._stop
        )
        if (channel := find_channel(config)) is not None:
            self._rescaler = InPlaceRescaler(
                self._session, self._saver, self._stop, channel
            )
        self._step_loop = StepLoop(self._session, timer, self._saver, self._rescaler)
        self._step_loop.trained.drift.kept = lambda: self._saver.items
        self._memory: MemoryWatch | None = None
        self._loader: ElasticLoader | None = None
        self._state: LoopState | None = None
        self._gather_start = 0
        self._training: bool | None = None  # None: not begun; False: over
        atexit.register(self._at_exit)

    @property
    def device(self) -> torch.device:
        return self._session.group.device

    @property
    def rank(self) -> int:
        return self._session.group.rank

    @property
    def num_replicas(self) -> int:
        return self._session.group.size

    @property
    def checkpoint_dir(self) -> Path | None:
        """Return the run's own directory, where its checkpoints are unless they have a
        URL.
        """
        return self._session.config.checkpoint_dir

    @property
    def is_first(self) -> bool:
        """Return whether this replica is the one that should print and write."""
        return self.rank == 0

    @property
    def sync_gradients(self) -> bool:
        """Return whether this pass is the last of its optimiser step, as Accelerate
        calls it.

        Use it for what must happen once per step (a moving average of weights, a
        counter, a log), because the loop's body runs once per pass. Outside of the
        loader's loop it is True.
        """
        return self._session.synchronising

    @property
    def progress(self) -> Progress:
        """Return how far training is."""
        return self._session.progress

    @property
    def batch(self) -> BatchConfig:
        """Return the batch that is in use. Raises RuntimeError before there is a
        loader.
        """
        if self._session.sampling is None:
            raise RuntimeError("there is no batch before run.loader(...)")
        return self._session.sampling.batch

    @property
    def last_pause(self) -> Pause | None:
        """Return how long the last change in place paused training; None if there was
        no change.
        """
        return self._rescaler.pause

    @property
    def grad_stats(self) -> GradStats | None:
        """Return the measured gradient noise, None before the first estimate.

        If nothing else uses it, measurements begin with the first call.
        """
        self._session.noise_asked = True
        return None if self._session.sampling is None else self._session.grad_stats()

    @property
    def noise_scale_interval(self) -> tuple[float, float] | None:
        """Return the 90 % interval of the gradient noise scale in samples, None before
        a few estimates.

        Measurements begin with the first call, as for `grad_stats`.
        """
        self._session.noise_asked = True
        return (
            None
            if self._session.sampling is None
            else self._session.sampling.noise.interval()
        )

    @property
    def noise_calibration(self) -> float | None:
        """Return the measured ratio of the gradient noise scale to that of the
        normalisation layers.

        None unless `grad_stats` is computed from those layers: see
        `prepare(noise=...)`.
        """
        return self._session.data.noise.calibration

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        name: str = "",
        **how: Unpack[Preparation],
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model and the optimiser to use from now on; the model is on
        `device`.

        `Preparation` has the other arguments. name: the name of this pair, if there are
        several. Each pair has its own scaling rule and noise scale; the first pair's
        noise scale decides the batch. Raises InputError for a value that is not
        allowed, or a name that is missing or taken.
        """
        trained = self._step_loop.trained
        trained.check_next(name, how.get("shard", False))
        noise_name = name if trained else ""
        pair = build_pair(
            self._session,
            self._step_loop.timer,
            model,
            optimizer,
            name=noise_name,
            how=how,
        )
        pair = replace(pair, name=name)
        # A script that says how the noise is measured uses it.
        self._session.noise_wanted = self._session.noise_wanted or "noise" in how
        trained.add(pair)
        self._rescaler.pairs.append(pair)
        self.register(_named("model", name), pair.model)
        self.register(_named("optimizer", name), pair.optimizer)
        if self._memory is None:
            self.register("unused", trained.unused)
            self._memory = MemoryWatch(self._session, self._saver, pair.model)
        return pair.model, pair.optimizer

    def prepare_scheduler(
        self, scheduler: LRScheduler, *, name: str = ""
    ) -> ElasticScheduler:
        """Return the learning-rate scheduler to use from now on. Checkpoints include
        it.

        name: that of the pair in `prepare`, if there are several.
        """
        elastic = ElasticScheduler(scheduler, self._session)
        self.register(_named("scheduler", name), elastic)
        return elastic

    def prepare_scaler(
        self, scaler: torch.amp.GradScaler, *, name: str = ""
    ) -> ElasticScaler:
        """Return the loss scaler of mixed precision to use from now on. Checkpoints
        include it.

        name: that of the pair in `prepare`, if there are several. Raises RuntimeError
        before `prepare`.
        """
        if not self._step_loop.trained:
            raise RuntimeError("call run.prepare(...) before run.prepare_scaler(...)")
        elastic = ElasticScaler(scaler, self._session, self._step_loop.trained)
        self.register(_named("scaler", name), elastic)
        return elastic

    def register(self, name: str, item: Stateful) -> None:
        """Include `item` in checkpoints. It needs `state_dict` and `load_state_dict` of
        plain data.
        """
        self._saver.register(name, item)

    def state(self, **values: object) -> LoopState:
        """Return an object that holds the loop's own variables, with these first
        values.

        Example: `state = run.state(best=0.0)`, then `state.best = 0.9`. Checkpoints
        include the variables, and joining replicas get them: they have their present
        values as soon as the first epoch begins. (Plain variables of the script have
        their first values again.) A second call adds names to the same object. Raises
        InputError for a name that is taken, or a value that is not plain data.
        """
        if self._state is None:
            self._state = LoopState()
            self.register("state", self._state)
        self._state.begin(values)
        return self._state

    def per_sample(
        self, name: str, initial: Callable[[int], object], *, dim: int = 0
    ) -> PerSample:
        """Return a store of one value per sample of a step, such as a hidden state.

        `get()` returns the values for the samples of this pass, as `set(value)` left
        them in the previous step, in whichever pass and on whichever replica that was.
        Call both once in each pass. Checkpoints include the values, and joining
        replicas get them.

        initial(n): returns the first value for n samples: a tensor, or lists, tuples
        and dicts of tensors. dim: the dimension of these tensors that has one entry per
        sample. Raises RuntimeError before `loader`. Raises InputError for a name that
        is taken, or if the loader has a `ShardedStream`.
        """
        if self._loader is None:
            raise RuntimeError("call run.loader(...) before run.per_sample(...)")
        if isinstance(self._loader.dataset, ShardedStream):
            allowed = "a data set or another stream: shards have no places in a step"
            raise InputError("per_sample", "beside a ShardedStream", allowed)
        kept = PerSample(self._session, name, initial, dim)
        self.register(f"per_sample/{name}", kept)
        return kept

    def loader(
        self,
        dataset: "Dataset[object] | Iterable[object]",
        batch_size: int | None = None,
        shuffle: bool | None = None,
        *positional: object,
        max_batch_size: int | None = None,
        max_atomic: int | None = None,
        batch_rule: str | None = None,
        num_samples: int | None = None,
        resume: str = "auto",
        **options: object,
    ) -> ElasticLoader:
        """Return the loader of the training data. `options` are torch's DataLoader's.

        batch_size: samples of one optimiser step, over all replicas. max_batch_size:
        the largest such batch of an `adaptive` job. max_atomic: the most samples of one
        pass on one replica; a larger share of the step is cut into passes, and
        gradients accumulate. batch_rule: how a job with contract `self` changes its
        batch, such as "accordion(every=5)". The job file overrides these four.

        For a stream (a data set without `__getitem__`): num_samples, the samples of an
        epoch, if you know them. resume: how a run continues in the middle of an epoch.
        "state" uses the stream's own state, "reading" reads the stream up to the
        position, and "auto" uses the state if it leads to the right sample, else reads.

        `sampler` is read as a whole when each epoch begins. Each batch of
        `batch_sampler` is one optimiser step. `compare=False` switches off the
        comparison of the replicas' first samples in each epoch. Raises InputError for
        arguments that contradict each other.
        """
        session = self._session
        if session.sampling is not None:
            raise InputError(
                "loader",
                "a second call",
                "one that leads: run.further_loader for others beside it",
            )
        options = named_options("loader", positional, options, samplers=True)
        sampler = find_sampler(options, batch_size, session.config.contract)
        if sampler is not None:
            batch_size = sampler.batch_size
        compare = bool(options.pop("compare", True))
        source = DataSource(
            dataset=dataset, options=dict(options), compare=compare, sampler=sampler
        )
        drop_last = bool(options.pop("drop_last", False))
        order = order_of(
            dataset,
            shuffle=bool(shuffle),
            drop_last=drop_last,
            seed=session.config.seed,
            num_samples=num_samples,
            sampler=sampler,
        )
        limits = resolve_limits(
            session.config.job.spec,
            session.config.contract,
            Wanted(
                batch_size=batch_size,
                max_batch_size=max_batch_size,
                max_atomic=max_atomic,
                batch_rule=batch_rule,
            ),
        )
        fetcher = fetcher_for(dataset, session, options, resume=resume)
        begin_sampling(
            session, limits, order
        )  # this is last, so that a refused call can be repeated
        if limits.rule is not None:
            self.register("batch_rule", self._step_loop.trained.follow(limits.rule))
        self._loader = loader = ElasticLoader(session, self._step_loop, fetcher, source)
        if loader.own_order is not None:
            self.register("loader/order", loader.own_order)
        if (recorder := self._step_loop.trained.recorder) is not None:
            recorder.sample_ids = lambda: loader.sample_ids
            recorder.dataset = dataset
        return self._loader

    def further_loader(
        self,
        dataset: "Dataset[object]",
        batch_size: int,
        shuffle: bool | None = None,
        *,
        repeat: bool = False,
        **options: object,
    ) -> FurtherLoader:
        """Return a loader of further training data, for use inside the loop over the
        leading loader.

        batch_size: samples of one optimiser step, a multiple of the leading loader's.
        When a step is cut into passes or its batch changes, this loader follows in the
        same ratio. repeat: loop through its own epochs, instead of starting again with
        each epoch of the leading loader. Its position is in checkpoints. `options` go
        to torch's DataLoader. Raises RuntimeError before `loader`, InputError for
        arguments that contradict each other.
        """
        if self._loader is None:
            raise RuntimeError(
                "call run.loader(...), which leads, before run.further_loader(...)"
            )
        session = self._session
        number = self._loader.num_further + 1
        options = named_options("further_loader", (), options)
        options.pop("drop_last", None)  # its steps are as many as the leading loader's
        order = order_beside(
            session, self._loader.dataset, dataset, shuffle=bool(shuffle), number=number
        )
        beside = Beside(
            order=order, ratio=ratio_beside(session, batch_size), repeat=repeat
        )
        further = FurtherLoader(session, dataset, options, beside)
        self.register(f"loader/{number}", further)
        self._loader.num_further = number
        return further

    def find_max_atomic(self, trial: Callable[[int], object], *, largest: int) -> int:
        """Return the largest number of samples of one pass that fits every replica's
        GPU, at most `largest`.

        trial(n): runs the loop's body on n samples of any content. It is called with
        growing n, then around the limit. Its changes to the model, the optimiser,
        registered objects and random generators are undone. The result is saved per
        model and GPU type, so later starts do not search. Raises RuntimeError before
        `prepare`, and if not even one sample fits.
        """
        if self._memory is None:
            raise RuntimeError("call run.prepare(...) before run.find_max_atomic(...)")
        if largest < 1:
            raise InputError("find_max_atomic(largest)", largest, "at least 1 sample")
        spec = self._session.config.job.spec
        if spec is not None and spec.batch.max_atomic is not None:
            return spec.batch.max_atomic
        return self._memory.find(trial, largest)

    def validation_loader(
        self,
        dataset: "Dataset[object] | Iterable[object]",
        *,
        batch_size: int,
        **options: object,
    ) -> ValidationLoader:
        """Return a loader that distributes the samples over the replicas, each sample
        once.

        batch_size: samples of one pass on one replica. `options` are torch's
        DataLoader's. A script may have any number of validation loaders, and iterate
        over them anywhere. Raises InputError if `dataset` is not a data set.
        """
        return ValidationLoader(dataset, self._session, batch_size, options)

    def require_growth_trial(self, num_samples: int, *, tolerance: float = 0.0) -> None:
        """Let an adaptive batch grow only if a trial confirms it (Merrill et al. 2025).

        Before each growth, the run trains on `num_samples` samples with the larger
        batch, undoes this, and trains on them with the present batch. The batch grows
        if the mean loss over the second half is at most `tolerance` higher with the
        larger batch. The loop's body must call `run.mean(loss=...)`. The run undoes
        changes of its own objects only, not what else the body changes. With a stream,
        the batch does not grow before the stream's length is known. Raises InputError
        for a value out of range, RuntimeError before `prepare`.
        """
        if not self._step_loop.trained:
            raise RuntimeError(
                "call run.prepare(...) before run.require_growth_trial(...)"
            )
        if num_samples < 1:
            raise InputError(
                "require_growth_trial(num_samples)", num_samples, "an integer >= 1"
            )
        if not tolerance >= 0.0:
            raise InputError(
                "require_growth_trial(tolerance)", tolerance, "a number >= 0"
            )
        self._step_loop.branches.num_samples = num_samples
        self._step_loop.branches.tolerance = tolerance

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield the number of each remaining epoch, up to `num_epochs` epochs in all.

        The run loads the last checkpoint when the first epoch begins. A second call
        continues where training was interrupted, also in the middle of an epoch, or
        trains up to a larger number of epochs.
        """
        if self._training is None:
            self._begin(num_epochs)
        elif not self._training:
            self._stop.trains()
        self._training = True
        session = self._session
        loader = self._loader
        assert loader is not None
        loader.begin()
        if self._step_loop.telemetry is not None:
            # in a notebook, minutes may lie between
            self._step_loop.telemetry.break_off()
        try:
            while session.progress.epoch < num_epochs:
                yield session.progress.epoch
                loader.end_epoch()
                left = not session.epoch_over
                self._step_loop.leave_epoch(left=left)
                session.begin_epoch()
                self._step_loop.end_epoch()
                last = session.progress.epoch >= num_epochs
                self._step_loop.settle(
                    save=last or self._saver.due(epoch_ended=True),
                    last=last,
                    left=left,
                )
        finally:
            loader.end()
        self._training = False
        self._step_loop.end_training()
        self._stop.ended()

    def steps(
        self, num_steps: int, *, batch_size: int, max_atomic: int | None = None
    ) -> Iterator[list[int]]:
        """Yield, for each pass of `num_steps` optimiser steps, one seed per sample.

        For training without a data set: the loop's body makes its samples (episodes,
        simulations) from the seeds, and its loss is their mean. A sample has the same
        seed at any number of replicas. Under contract `adaptive` the loop ends after
        `num_steps` x `batch_size` samples. This replaces `loader` and `epochs`, and
        raises the same errors.
        """
        data = SeedSamples(num_steps, batch_size, self._session.config.seed)
        loader = self.loader(
            data, batch_size=batch_size, max_atomic=max_atomic, collate_fn=as_list
        )
        return (cast("list[int]", seeds) for _ in self.epochs(1) for seeds in loader)

    def weight(self, amount: float | Tensor) -> None:
        """Set the number of items (tokens, boxes, pairs) over which this pass's loss is
        a mean.

        Call it once in each pass, on every replica, before `loss.backward()` and
        `run.mean`. The step's gradient is then that of the mean over all items of the
        step, over all passes and replicas. `run.mean` is weighted by items as well. A
        pass of 0 items is left out. In a loop over a validation loader, the number
        counts for that loader's means.

        A number on a GPU makes the CPU wait for it; a Python number does not. Raises
        InputError for a negative number or NaN, for a second call in a pass, and if
        only some passes call it.
        """
        if any(pair.gradients.sums for pair in self._step_loop.trained):
            allowed = (
                'nothing with prepare(reduction="sum"): sums over items add up by '
                "themselves"
            )
            raise InputError("run.weight(n)", amount, allowed)
        self._session.weigh_pass(amount)

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the rows of `tensor` of all replicas, in rank order, for a loss over
        all samples of a step.

        tensor: shape (own rows, ...); replicas may have different numbers of rows.
        Gradients go back to the replica that a row comes from. This replica's rows
        begin at `gather_start`. All replicas must call it. On one replica, and in a
        loop over a validation loader, it returns `tensor`. Raises InputError in a step
        of several passes, because a pass sees only its own samples.
        """
        session = self._session
        current = self._session.current
        session.gathers = True
        self._gather_start = 0
        if session.figures.validation is not None or session.trial:
            return tensor
        weight = 1.0
        if current is not None:
            if session.data.batch.accumulation:
                raise InputError(
                    "run.gather(tensor)",
                    "a call in a step of several passes",
                    "steps of one pass: leave max_atomic away, or use more replicas",
                )
            weight = session.weights.of_pass(current) / current.step_samples
            if weight and any(pair.gradients.sums for pair in self._step_loop.trained):
                weight = 1.0
        if not session.group.distributed:
            return tensor
        rows, self._gather_start = gather_rows(tensor, session.group, weight)
        return rows

    @property
    def gather_start(self) -> int:
        """Return the index of this replica's first row in the last result of
        `gather`.
        """
        return self._gather_start

    def log(self, **metrics: float | Tensor) -> None:
        """Record figures such as a loss or an accuracy. Reports contain the newest
        value of each name.
        """
        for name, value in metrics.items():
            figure = value.detach() if isinstance(value, Tensor) else value
            self._session.figures.metrics[name] = float(figure)
            self._look_at(name, figure)
        self._session.note_logged(metrics)

    def sum(self, **figures: float | Tensor) -> None:
        """Add figures of this pass (correct answers, tokens) to the epoch's sums over
        passes and replicas.

        In a loop over a validation loader, they are added to the sums of that loader.
        The call does not wait for values on a GPU. Values of a stand-in (a pass without
        samples) do not count.
        """
        self._add(figures, mean=False)

    def mean(self, **figures: float | Tensor) -> None:
        """Add figures of this pass, each a mean over its samples (loss), to the epoch's
        means over samples.

        In a loop over a validation loader, they are added to the means of that loader.
        Outside of the training loop, each call has the same weight.
        """
        self._add(figures, mean=True)

    def totals(self) -> dict[str, float]:
        """Return this epoch's sums and means so far over all replicas, also after a
        rescale.

        All replicas must call it. The next epoch starts from zero.
        """
        return whole_values(self._session.figures.totals, self._session.group)

    def _add(self, figures: Mapping[str, float | Tensor], *, mean: bool) -> None:
        totals, num_samples = self._session.scope
        if not num_samples:
            return
        weight = None
        if mean:
            weight, said = self._session.mean_weight
            totals.check_weighted(said=said)
            if weight == 0.0:
                return  # the mean over nothing is often not a number
        for name, value in figures.items():
            totals.add(name, value, weight)
            if mean:
                self._look_at(name, value)

    def _look_at(self, name: str, value: float | Tensor) -> None:
        """Record the step in which a figure of training is not finite. A figure on a
        GPU is not waited for.
        """
        session = self._session
        if session.figures.validation is not None or session.figures.not_finite:
            return
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return
        figure = float(value.detach() if isinstance(value, Tensor) else value)
        if math.isfinite(figure):
            return
        # In the loop's body this is the running step. After an epoch it is the last
        # step.
        step = session.progress.step + (session.current is not None)
        session.figures.note_trouble(step, f"{name} is {figure}", speaks=True)

    def close(self) -> None:
        """Send the last report, finish the last checkpoint, leave the group. Called
        when the script ends.
        """
        if self._training and sys.exception() is None:
            self._failures.tell_left()
        recorder = self._step_loop.trained.recorder
        if recorder is not None and self._training is not None:
            record = {"contract": str(self._session.config.contract)}
            objects = self._saver.objects()
            recorder.end({"format": FORMAT, "run": record, "objects": objects})
        if self._step_loop.telemetry is not None:
            self._step_loop.telemetry.close()
            self._step_loop.telemetry = None
        try:
            self._saver.wait()
        finally:
            self._step_loop.trained.close()
            leave_group(self._session.group)
        # These are the last references to the groups, so gloo's threads end here. A
        # thread that releases a tensor while the interpreter shuts down aborts the
        # process ("terminate called without an active exception").
        self._session.group = replace(self._session.group, control=None)
        if not self._training:
            # A notebook may continue for long, and begin other runs. So this run's
            # model is released.
            atexit.unregister(self._at_exit)
            self._failures.uninstall()
            if self._failures.exit_code is None:
                self._stop.ended()

    def _at_exit(self) -> None:
        if self._failures.forked:
            return
        if self._stop.exit_code != EXIT_UNSAVED:
            # No last report is needed, because the next generation begins with one.
            end_soon(self._stop.exit_code)
            return
        self._failures.leave(unfinished=self._training is True)
        try:
            self.close()
        except OSError:
            # Python prints an exception in an exit handler, but ends with code 0.
            logger.exception("the last checkpoint was not written")
            end_now(EXIT_FAILED)
        if self._failures.exit_code is None:
            self._stop.ended()
        self._failures.release()

    def _begin(self, num_epochs: int) -> None:
        session = self._session
        if session.sampling is None or not self._step_loop.trained:
            missing = "run.loader" if self._step_loop.trained else "run.prepare"
            raise RuntimeError(f"call {missing}(...) before run.epochs(...)")
        for model in self._rescaler.models:
            model.check_unchanged()
        self._step_loop.trained.check_schedulers(self._saver.names)
        if (recorder := self._step_loop.trained.recorder) is not None:
            recorder.evidence.kept = lambda: self._saver.items
            recorder.begin(self._rescaler.models)
        self._step_loop.trained.gathers.watch()
        self._training = True
        assert self._memory is not None
        memory = self._memory
        self._failures.explain = lambda error: (
            memory.explain(error)
            or explain_refusal(error)
            or explain_unlike(error)
            or explain_carried(error, session, changed=self._rescaler.in_first_step)
        )
        if session.config.place.joining and self._loader is not None:
            self._loader.prepare()
            self._rescaler.fetch = self._loader.try_first
        in_place = self._rescaler.begin()
        self._step_loop.report_from = lambda: self._telemetry(
            num_epochs, self._last_pause
        )
        if in_place:
            self._step_loop.enter()
            return
        stop_cost_s = self._saver.restore() or 0.0
        settle_batch(session)
        self._step_loop.telemetry = self._telemetry(
            num_epochs, lambda: stop_cost_s + process_age_s()
        )
        self._step_loop.settle()

    def _telemetry(
        self, num_epochs: int, cost: Callable[[], Pause | float]
    ) -> Telemetry | None:
        """Return the telemetry of this replica from here on, None if it has nothing to
        report, or no scheduler to report to.
        """
        config = self._session.config
        if self.rank != 0 or not (config.job.url or self._session.adaptive):
            return None
        channel = (
            HttpChannel(config.job.url, config.job.token, config.job.name)
            if config.job.url
            else None
        )
        reporter = Reporter(
            channel,
            config.place.generation,
            config.times.last_report_s,
            self._session.figures.logged,
        )
        return Telemetry(self._session, reporter, num_epochs, cost)

    def _last_pause(self) -> Pause:
        return self._rescaler.pause or Pause()

    def _keep(self, sample: StepSample) -> None:
        self._session.profiles.of(self._session.gpu_type).add(
            sample.placement,
            sample.atomic,
            sample.compute_s,
            sample.step_s,
            sample.fetch_s,
        )
        self._session.figures.computed_s = sample.compute_s


def _named(kind: str, name: str) -> str:
    return f"{kind}/{name}" if name else kind
