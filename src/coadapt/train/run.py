"""`coadapt.train.init` and the Run that it returns: all that a training script talks to."""

import atexit
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from coadapt.model import BatchConfig, GradStats, InputError
from coadapt.train.cycle import TrainingCycle
from coadapt.train.env import Options, TrainConfig, read_config
from coadapt.train.finder import MemoryWatch
from coadapt.train.gradients import StepGradients
from coadapt.train.group import form_group, leave_group
from coadapt.train.inplace import InPlaceRescaler
from coadapt.train.last_words import EXIT_FAILED, LastWords, tell_input_errors
from coadapt.train.limits import begin_sampling, resolve_limits, settle_batch
from coadapt.train.loader import ElasticLoader, fetcher_for, order_of
from coadapt.train.model import ElasticModel
from coadapt.train.norm_layers import LayerRows
from coadapt.train.norms import NormMeter
from coadapt.train.optimizer import ElasticOptimizer, ElasticScheduler, check_optimizer
from coadapt.train.pause import Pause
from coadapt.train.precision import ElasticScaler
from coadapt.train.preconditioner import preconditioner_for
from coadapt.train.reporter import HttpChannel, Reporter
from coadapt.train.rescale import CheckpointRescaler, Rescaler
from coadapt.train.saver import Saver, Stateful
from coadapt.train.scaling import ScalingRule, resolve_rule
from coadapt.train.session import Progress, Session
from coadapt.train.stop import EXIT_UNSAVED, StopSignal, end_now
from coadapt.train.switchboard import Switchboard
from coadapt.train.telemetry import Telemetry, process_age_s
from coadapt.train.timing import StepSample, timer_for
from coadapt.train.totals import whole_values
from coadapt.train.validation import ValidationLoader

if TYPE_CHECKING:
    from coadapt.train.fsdp import Shard

logger = logging.getLogger(__name__)

REDUCTIONS = ("mean", "sum")
NOISE = ("gradients", "norm-layers")


def init(**options: Unpack[Options]) -> "Run":
    """Join the other replicas, if there are any, and return the run. See `Options` for the arguments.

    Works alone (a script, a notebook), under torchrun, and under the scheduler. Raises InputError for a
    setting that is out of its range.
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
        self._stop = StopSignal(config.stop_timeout_s, listeners_dir=config.listeners_dir)
        if config.checkpoint_dir is not None:
            self._stop.install()
        self._last_words = LastWords(self._session, self._stop)
        self._last_words.install()
        self._saver = Saver(self._session)
        self._timer = timer_for(self.device, self._keep)
        self._rescaler: Rescaler = CheckpointRescaler(self._session, self._saver, self._stop)
        if config.rescale_dir is not None:
            board = Switchboard(config.rescale_dir)
            self._rescaler = InPlaceRescaler(self._session, self._saver, self._stop, board)
        self._cycle = TrainingCycle(self._session, self._timer, self._saver, self._rescaler)
        self._memory: MemoryWatch | None = None
        self._loader: ElasticLoader | None = None
        self._training: bool | None = None  # None: not begun, False: over
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
        """Return the directory of the checkpoints, private to the run."""
        return self._session.config.checkpoint_dir

    @property
    def is_first(self) -> bool:
        """Return whether this replica is the one that should print and write."""
        return self.rank == 0

    @property
    def progress(self) -> Progress:
        """Return where training stands."""
        return self._session.progress

    @property
    def batch(self) -> BatchConfig:
        """Return the batch that is in use. Raises RuntimeError before there is a loader."""
        if self._session.sampling is None:
            raise RuntimeError("there is no batch before run.loader(...)")
        return self._session.sampling.batch

    @property
    def last_pause(self) -> Pause | None:
        """Return how long the last change in place kept training waiting; None if there was none."""
        return self._rescaler.pause

    @property
    def grad_stats(self) -> GradStats | None:
        """Return what is known of the gradient's noise, None before the first estimate."""
        return None if self._session.sampling is None else self._session.grad_stats()

    @property
    def noise_scale_interval(self) -> tuple[float, float] | None:
        """Return the 90 % interval of the gradient noise scale in samples, None before a few estimates."""
        return None if self._session.sampling is None else self._session.sampling.noise.interval()

    @property
    def noise_calibration(self) -> float | None:
        """Return the gradient noise scale over that of the normalisation layers, as it was found so far.

        None as long as `grad_stats` is not calculated from those layers: see `prepare(noise=...)`.
        """
        return self._session.data.noise.calibration

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scaling: str | ScalingRule = "auto",
        reduction: str = "mean",
        noise: str = "gradients",
        shard: "Shard" = False,
        ddp: Mapping[str, object] | None = None,
        fsdp: Mapping[str, object] | None = None,
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return model and optimiser to use in their place; the model is on `device` from now on.

        scaling: how the learning rate follows the batch: "auto" (AdaScale for SGD, square root for others),
        "adascale", "square-root", "linear", "legw", "adam", "none", or a function of `BatchScale`.
        reduction: whether the loss is the "mean" or the "sum" over its samples. noise: what the gradient
        noise scale is measured on: whole "gradients", or also the per-example gradients of "norm-layers".
        shard: let each replica hold a part of the model only (FSDP2): True, a list of the module classes that
        are gathered one by one, or a function of model and device mesh that calls `fully_shard`. ddp, fsdp:
        further arguments of DistributedDataParallel or `fully_shard`. Raises InputError for another value, or
        when called twice.
        """
        if self._cycle.gradients is not None:
            raise InputError("prepare", "a second call", "one model and one optimiser per run")
        if reduction not in REDUCTIONS:
            raise InputError("prepare(reduction)", reduction, " or ".join(REDUCTIONS))
        check_optimizer(optimizer, model)
        rule = resolve_rule(scaling, optimizer)
        sums = reduction == "sum"
        meter = _meter(noise, model, optimizer, sums=sums)
        gradients = StepGradients(self._session, meter, self._timer, list(model.parameters()), sums=sums)
        sharding = None
        if shard is not False:
            from coadapt.train.exchange import PartExchange
            from coadapt.train.fsdp import Sharding

            exchange = PartExchange(self._session, meter, self._timer, sums=sums)
            sharding = Sharding(shard, dict(fsdp or {}), optimizer, exchange)
        elastic = ElasticModel(model, self._session, gradients, dict(ddp or {}), sharding)
        elastic.begin()
        self._session.sharded = sharding is not None
        self._cycle.gradients = gradients
        self._rescaler.model = elastic
        stepper = ElasticOptimizer(optimizer, self._session, gradients, rule)
        self.register("model", elastic)
        self.register("optimizer", stepper)
        self._memory = MemoryWatch(self._session, self._saver, elastic)
        return elastic, stepper

    def prepare_scheduler(self, scheduler: LRScheduler) -> ElasticScheduler:
        """Return the learning-rate scheduler to use in its place; it is kept in checkpoints as well."""
        elastic = ElasticScheduler(scheduler, self._session)
        self.register("scheduler", elastic)
        return elastic

    def prepare_scaler(self, scaler: torch.amp.GradScaler) -> ElasticScaler:
        """Return mixed precision's loss scaler to use in its place; it is kept in checkpoints as well.

        Raises RuntimeError before `prepare`.
        """
        if self._cycle.gradients is None:
            raise RuntimeError("call run.prepare(...) before run.prepare_scaler(...)")
        elastic = ElasticScaler(scaler, self._session, self._cycle.gradients)
        self.register("scaler", elastic)
        return elastic

    def register(self, name: str, item: Stateful) -> None:
        """Keep `item` in checkpoints too: anything with `state_dict` and `load_state_dict` of plain data."""
        self._saver.register(name, item)

    def loader(
        self,
        dataset: "Dataset[object] | Iterable[object]",
        *,
        batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_atomic: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        num_samples: int | None = None,
        resume: str = "auto",
        **options: object,
    ) -> ElasticLoader:
        """Return the loader of the training data; `options` go to torch's DataLoader.

        batch_size: of one optimiser step, over all replicas. max_batch_size: what an adaptive job may grow it
        to. max_atomic: the most samples that one replica can hold at a time; beyond it, gradients accumulate.
        Under the scheduler the job file may say these instead. Of a stream (a dataset without `__getitem__`):
        num_samples, if you know how many an epoch has; resume, whether to come back into the middle of an
        epoch by the dataset's own "state", by "reading", or ("auto") by a state that proves to lead there.
        Raises InputError where they contradict.
        """
        session = self._session
        if session.sampling is not None:
            raise InputError(
                "loader", "a second call", "one training loader per run; validate with run.validation_loader"
            )
        order = order_of(
            dataset, shuffle=shuffle, drop_last=drop_last, seed=session.config.seed, num_samples=num_samples
        )
        limits = resolve_limits(
            session.config.spec,
            session.config.contract,
            batch_size=batch_size,
            max_batch_size=max_batch_size,
            max_atomic=max_atomic,
        )
        fetcher = fetcher_for(dataset, session, options, resume=resume)
        begin_sampling(session, limits, order)  # last: a call that was refused may be made again
        self._loader = ElasticLoader(session, self._cycle, fetcher)
        return self._loader

    def find_max_atomic(self, trial: Callable[[int], object], *, largest: int) -> int:
        """Return how many samples a pass may have on every replica's GPU, at most `largest`: see `loader`.

        trial: does what the loop's body does, on so many samples of any content. It is called with growing
        numbers, then to either side of the ceiling; what it changes in the model, the optimiser, registered
        objects and random generators is undone. What was found is remembered per model and GPU type: later
        starts do not search. RuntimeError before `prepare`, and if not even one sample fits.
        """
        if self._memory is None:
            raise RuntimeError("call run.prepare(...) before run.find_max_atomic(...)")
        if largest < 1:
            raise InputError("find_max_atomic(largest)", largest, "at least 1 sample")
        spec = self._session.config.spec
        if spec is not None and spec.batch.max_atomic is not None:
            return spec.batch.max_atomic
        return self._memory.find(trial, largest)

    def validation_loader(
        self, dataset: "Dataset[object] | Iterable[object]", *, batch_size: int, **options: object
    ) -> ValidationLoader:
        """Return a loader of which each replica gets its own part: each sample once, none twice.

        batch_size: samples of one pass on one replica. `options` go to torch's DataLoader. Any number of
        loaders may be made, and iterated over anywhere. Raises InputError for what is no dataset.
        """
        return ValidationLoader(dataset, self._session, batch_size, options)

    def test_growth(self, num_samples: int, *, tolerance: float = 0.0) -> None:
        """Let an adaptive batch grow only if a trial confirms it (Merrill et al. 2025).

        Before each growth, `num_samples` samples are trained on with the larger batch, undone, and trained on
        with the present one. The batch grows if the larger one's mean loss over the second half is at most
        `tolerance` above the other's. The loop's body must call `run.mean(loss=...)`; what it changes besides
        the run's own objects is not undone. In a stream, nothing is tried, and so nothing grows, before its
        length is known. Raises InputError for a value out of range, RuntimeError before `prepare`.
        """
        if self._cycle.gradients is None:
            raise RuntimeError("call run.prepare(...) before run.test_growth(...)")
        if num_samples < 1:
            raise InputError("test_growth(num_samples)", num_samples, "an integer >= 1")
        if not tolerance >= 0.0:
            raise InputError("test_growth(tolerance)", tolerance, "a number >= 0")
        self._cycle.branches.num_samples = num_samples
        self._cycle.branches.tolerance = tolerance

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield the number of each epoch that is still to be trained, until `num_epochs` are done.

        State comes back from the last checkpoint when the first one begins. Called again, it goes on where
        training was interrupted, in the middle of an epoch perhaps, or to a larger number of epochs.
        """
        if self._training is None:
            self._begin(num_epochs)
        self._training = True
        session, loader = self._session, self._loader
        assert loader is not None
        loader.begin()
        if self._cycle.telemetry is not None:
            self._cycle.telemetry.break_off()  # in a notebook, minutes may lie between
        while session.progress.epoch < num_epochs:
            yield session.progress.epoch
            loader.end_epoch()
            session.begin_epoch()
            last = session.progress.epoch >= num_epochs
            self._cycle.settle(save=last or self._saver.due(epoch_ended=True), last=last)
        self._training = False
        if self._cycle.gradients is not None:
            self._cycle.gradients.check.end_training(session.progress.step)

    def log(self, **metrics: float | Tensor) -> None:
        """Note figures of the user's own (loss, accuracy); the newest of each name goes into reports."""
        for name, value in metrics.items():
            self._session.metrics[name] = float(value.detach() if isinstance(value, Tensor) else value)

    def sum(self, **figures: float | Tensor) -> None:
        """Add figures of this pass (correct answers, tokens) to the epoch's sums over passes and replicas.

        While a validation loader is iterated over: to the sums of that loader.
        Tensors are not waited for. What a stand-in computes does not count.
        """
        self._add(figures, mean=False)

    def mean(self, **figures: float | Tensor) -> None:
        """Add figures of this pass, each a mean over its samples (loss), to the epoch's means over samples.

        While a validation loader is iterated over: to the means of that loader.
        Outside of the training loop each call weighs the same.
        """
        self._add(figures, mean=True)

    def totals(self) -> dict[str, float]:
        """Return this epoch's sums and means so far, over all replicas, even if they changed on the way.

        All replicas must call it alike. The next epoch begins anew.
        """
        return whole_values(self._session.totals, self._session.group)

    def _add(self, figures: Mapping[str, float | Tensor], *, mean: bool) -> None:
        totals, weight = self._session.scope
        if not weight:
            return
        for name, value in figures.items():
            totals.add(name, value, weight if mean else None)

    def close(self) -> None:
        """Send the last report, finish the last checkpoint, leave the group. Called when the script ends."""
        if self._cycle.telemetry is not None:
            self._cycle.telemetry.close()
            self._cycle.telemetry = None
        try:
            self._saver.wait()
        finally:
            leave_group(self._session.group)
        # Its last reference: gloo's threads end here. One that lets go of a tensor while the interpreter is
        # taken down aborts the process ("terminate called without an active exception").
        self._session.group = replace(self._session.group, control=None)
        if self._cycle.gradients is not None:
            self._cycle.gradients.check.close()
        if not self._training:
            # A notebook may go on for long, and begin other runs: this one's model is to be forgotten.
            atexit.unregister(self._at_exit)
            self._last_words.uninstall()

    def _at_exit(self) -> None:
        if self._stop.exit_code != EXIT_UNSAVED:
            # Nobody waits for a last report: the next generation begins with one.
            end_now(self._stop.exit_code)
        self._last_words.leave(unfinished=self._training is True)
        try:
            self.close()
        except OSError:
            # Python prints what an exit handler raises, and ends with code 0.
            logger.exception("the last checkpoint was not written")
            end_now(EXIT_FAILED)
        self._last_words.said()

    def _begin(self, num_epochs: int) -> None:
        session = self._session
        if session.sampling is None or self._cycle.gradients is None:
            raise RuntimeError("call run.prepare(...) and run.loader(...) before run.epochs(...)")
        assert self._rescaler.model is not None
        self._rescaler.model.check_unchanged()
        self._training = True
        assert self._memory is not None
        self._last_words.explain = self._memory.explain
        in_place = self._rescaler.begin()
        self._cycle.report_from = lambda: self._telemetry(num_epochs, self._last_pause)
        if in_place:
            self._cycle.enter()
            return
        stop_cost_s = self._saver.restore() or 0.0
        settle_batch(session)
        self._cycle.telemetry = self._telemetry(num_epochs, lambda: stop_cost_s + process_age_s())
        self._cycle.settle()

    def _telemetry(self, num_epochs: int, cost: Callable[[], Pause | float]) -> Telemetry | None:
        """Return what reports from here on, None where this replica has nothing to report or nobody to."""
        config = self._session.config
        if self.rank != 0 or not (config.url or self._session.adaptive):
            return None
        channel = HttpChannel(config.url, config.token, config.job) if config.url else None
        return Telemetry(self._session, Reporter(channel, config.generation), num_epochs, cost)

    def _last_pause(self) -> Pause:
        return self._rescaler.pause or Pause()

    def _keep(self, sample: StepSample) -> None:
        builder = self._session.profiles.builder(self._session.gpu_type)
        builder.add(sample.placement, sample.atomic, sample.compute_s, sample.step_s)


def _meter(noise: str, model: nn.Module, optimizer: torch.optim.Optimizer, *, sums: bool) -> NormMeter:
    metric, layers = preconditioner_for(optimizer), None
    if noise not in NOISE:
        raise InputError("prepare(noise)", noise, " or ".join(NOISE))
    if noise == "norm-layers":
        try:
            layers = LayerRows(model, metric)
        except ValueError as error:
            raise InputError("prepare(noise)", noise, str(error)) from None
    return NormMeter(metric, sums=sums, layers=layers)
