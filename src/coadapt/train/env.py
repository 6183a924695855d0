"""The settings of a training process: read once, here, from arguments and environment;
then one frozen value.

Argument beats environment beats default. One exception: the job file's contract beats
the argument.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

from coadapt.interfaces import Interface, set_interfaces
from coadapt.model import BatchConfig, InputError, JobSpec, Placement, RescaleContract
from coadapt.model.checkpoint_url import (
    check_checkpoint_url,
    file_path,
    is_checkpoint_url,
)
from coadapt.model.contract_env import (
    ENV_BATCH,
    ENV_CHECKPOINT_DIR,
    ENV_CHECKPOINT_EVERY_S,
    ENV_CHECKPOINT_URL,
    ENV_CONTROL_TOKEN,
    ENV_CONTROL_URL,
    ENV_GENERATION,
    ENV_GPU_TYPE,
    ENV_JOB,
    ENV_JOINING,
    ENV_LAST_REPORT_S,
    ENV_LISTENERS_DIR,
    ENV_LOGGED,
    ENV_NODE_ADDRESS,
    ENV_PARAMS,
    ENV_PLACEMENT,
    ENV_REPORT_EVERY_S,
    ENV_RESCALE_DIR,
    ENV_SPEC,
    ENV_STOP_TIMEOUT_S,
    ENV_TOKEN,
    ENV_URL,
)
from coadapt.model.rescale import member_name
from coadapt.model.wire import from_json

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Set by `coadapt check`: the folder where replicas write what they do, and find orders
# to wait (wrappers/recorder.py).
ENV_CHECK_DIR = "COADAPT_CHECK_DIR"

CHECKPOINT_EVERY_S = 30.0
TORCHRUN_MARK = "TORCHELASTIC_RUN_ID"  # torchrun sets it for its workers
LAST_REPORT_S = 3.0
REPORT_EVERY_S = 30.0  # Pollux's agents refit and report at this period
STOP_TIMEOUT_S = 25.0  # below the 30 s after which an executor kills
# A replica that skipped a backward may wait for others that wait for it. Where all
# skipped it, one may be busy with something else: an evaluation of its own.
SKIPPED_WAIT_S = 60.0


class Draws(StrEnum):
    """How random numbers of training are drawn: dropout, noise, augmentation."""

    PER_REPLICA = "per-replica"
    PER_SAMPLE = "per-sample"


class Options(TypedDict, total=False):
    """Arguments of `coadapt.train.init`, all optional.

    contract: fixed (default), adaptive, self, frozen or schedule. seed: decides the
    order of samples. random: "per-replica" (default): each replica draws its own
    dropout masks and noise; "per-sample": they depend on seed, step and the sample's
    place, and are the same at any number of replicas. device: "cpu", "cuda" for this
    replica's own GPU, or "cuda:1". checkpoint_dir: a directory or a URL such as
    s3://BUCKET/FOLDER; without one there are no checkpoints. checkpoint_every_s,
    report_every_s: seconds between two of them. stop_timeout_s: seconds from SIGTERM to
    a forced end.
    """

    contract: str | None
    seed: int
    random: str
    device: str
    checkpoint_dir: str | Path | None
    checkpoint_every_s: float
    report_every_s: float
    stop_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process among the replicas of its generation; it follows each rescale in
    place.

    local_rank: on its node, as at its start. joining: the other replicas train already.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    placement: Placement = field(default_factory=lambda: Placement((1,)))
    generation: int = 0
    joining: bool = False

    @property
    def member(self) -> str:
        """The replica's name, if nothing was rescaled since its start
        (model/rescale.py).
        """
        return member_name(self.generation, self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the scheduler says of the job; all empty without one. batch: what its policy
    dictates.

    url, token: where the job's reports go, and what allows them.
    """

    name: str = ""
    spec: JobSpec | None = None
    batch: BatchConfig | None = None
    gpu_type: str = ""
    url: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Periods and limits in seconds.

    checkpoint_every_s: None where neither the script nor the environment sets it
    (checkpoint_period.py). skipped_wait_s: for other replicas, after a step without a
    backward, or a loop that was left early. last_report_s: for a scheduler that is away
    when the script has ended.
    """

    checkpoint_every_s: float | None = None
    report_every_s: float = REPORT_EVERY_S
    stop_timeout_s: float = STOP_TIMEOUT_S
    skipped_wait_s: float = SKIPPED_WAIT_S
    last_report_s: float = LAST_REPORT_S


@dataclass(frozen=True, slots=True)
class Control:
    """Where orders to rescale in place are served, and what opens that."""

    url: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The settings of a training process, from its environment.

    logged: see ENV_LOGGED. rescale_dir: where it reads orders to rescale in place, or
    control. listeners_dir: where it notes that it handles SIGTERM. checkpoint_dir: of
    the run's own files. checkpoint_url: the object store where its checkpoints are, ""
    where they are in checkpoint_dir. check_dir: where `coadapt check` reads what the
    steps were.
    """

    place: Place = field(default_factory=Place)
    job: Job = field(default_factory=Job)
    times: Times = field(default_factory=Times)
    contract: RescaleContract = RescaleContract.FIXED
    seed: int = 0
    random: Draws = Draws.PER_REPLICA
    device: str = ""
    logged: tuple[str, ...] = ()
    rescale_dir: Path | None = None
    control: Control | None = None
    listeners_dir: Path | None = None
    check_dir: Path | None = None
    checkpoint_dir: Path | None = None
    checkpoint_url: str = ""

    @property
    def keeps_checkpoints(self) -> bool:
        """Return whether there is a place for checkpoints."""
        return self.checkpoint_dir is not None or bool(self.checkpoint_url)


def read_config(**options: Unpack[Options]) -> TrainConfig:
    """Return the settings of this process. Raises InputError with the argument's or
    variable's name.
    """
    return parse_config(options, os.environ)


def rendezvous_address() -> tuple[str, int]:
    """Return the address and the port at which the replicas of a start find each
    other.
    """
    return os.environ.get("MASTER_ADDR", "127.0.0.1"), _count(
        os.environ, "MASTER_PORT", 29500
    )


def under_torchrun() -> bool:
    """Return whether torchrun has started this process, and keeps the store for its
    replicas.
    """
    return TORCHRUN_MARK in os.environ


def node_address() -> str:
    """Return where replicas on other nodes reach this process."""
    return os.environ.get(ENV_NODE_ADDRESS, "127.0.0.1")


def name_interface() -> Interface | None:
    """Tell gloo and NCCL by which interface other machines reach this one, unless one
    was set; return it.
    """
    return set_interfaces(os.environ, os.environ.get(ENV_NODE_ADDRESS, ""))


def visible_devices() -> str | None:
    """Return the GPUs named in the environment, None if none is."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def tell_placement(config: TrainConfig) -> None:
    """Let libraries that read torchrun's variables know of the replicas that `config`
    has.
    """
    counts = config.place.placement.replicas_per_node
    first = config.place.rank - config.place.local_rank
    node = sum(end <= first for end in accumulate(counts))
    os.environ["WORLD_SIZE"] = str(config.place.world_size)
    os.environ["LOCAL_WORLD_SIZE"] = str(counts[node])
    os.environ[ENV_PLACEMENT] = ",".join(str(count) for count in counts)


def child_environ(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a replica that this process starts, with `variables`
    set.
    """
    return {"OMP_NUM_THREADS": "1", **os.environ, **variables}


@contextmanager
def as_if_alone(variables: Mapping[str, str]) -> Iterator[None]:
    """Let what runs inside find no other replicas, and `variables` set."""
    replaced = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", *variables)
    before = {name: os.environ.pop(name) for name in replaced if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def parse_config(options: Options, environ: Mapping[str, str]) -> TrainConfig:
    """Return the settings that `options` and `environ` give together. Raises
    InputError.
    """
    spec = _json(environ, ENV_SPEC, JobSpec)
    checkpoint_dir, checkpoint_url = _checkpoints(options, environ)
    rescale_dir = environ.get(ENV_RESCALE_DIR)
    listeners_dir = environ.get(ENV_LISTENERS_DIR)
    check_dir = environ.get(ENV_CHECK_DIR)
    control_url = environ.get(ENV_CONTROL_URL)
    return TrainConfig(
        place=_place(environ),
        job=Job(
            name=environ.get(ENV_JOB, ""),
            spec=spec,
            batch=_json(environ, ENV_BATCH, BatchConfig),
            gpu_type=environ.get(ENV_GPU_TYPE, ""),
            url=environ.get(ENV_URL, "").rstrip("/"),
            token=environ.get(ENV_TOKEN, ""),
        ),
        times=_times(options, environ),
        contract=_contract(options.get("contract"), spec),
        seed=_seed(options.get("seed", 0)),
        random=_draws(options.get("random", Draws.PER_REPLICA)),
        device=options.get("device", ""),
        logged=_logged(environ),
        rescale_dir=Path(rescale_dir) if rescale_dir else None,
        control=Control(control_url, environ.get(ENV_CONTROL_TOKEN, ""))
        if control_url
        else None,
        listeners_dir=Path(listeners_dir) if listeners_dir else None,
        check_dir=Path(check_dir) if check_dir else None,
        checkpoint_dir=checkpoint_dir,
        checkpoint_url=checkpoint_url,
    )


def _checkpoints(
    options: Options, environ: Mapping[str, str]
) -> tuple[Path | None, str]:
    """Return the directory and the URL for checkpoints; the script's word goes before
    the job file's.

    A URL of a directory is that directory: it can do more than an object store.
    """
    given = str(options.get("checkpoint_dir") or "")
    folder = environ.get(ENV_CHECKPOINT_DIR, "")
    field = "init(checkpoint_dir)"
    url = given
    if not given:
        field = "checkpoints"
        url = environ.get(ENV_CHECKPOINT_URL, "")
    elif not is_checkpoint_url(given):
        folder = given
        url = ""
    if url:
        check_checkpoint_url(url, field)
    if (path := file_path(url)) is not None:
        folder = path
        url = ""
    return Path(folder) if folder else None, url


def _place(environ: Mapping[str, str]) -> Place:
    world_size = _count(environ, "WORLD_SIZE", 1, at_least=1)
    rank = _count(environ, "RANK", 0)
    if rank >= world_size:
        raise InputError("RANK", rank, f"0..{world_size - 1}, below WORLD_SIZE")
    return Place(
        rank=rank,
        world_size=world_size,
        local_rank=_count(environ, "LOCAL_RANK", 0),
        placement=_placement(environ, world_size),
        generation=_count(environ, ENV_GENERATION, 0),
        joining=environ.get(ENV_JOINING) == "1",
    )


def _logged(environ: Mapping[str, str]) -> tuple[str, ...]:
    text = environ.get(ENV_LOGGED, "")
    try:
        names = json.loads(text) if text else []
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise InputError(ENV_LOGGED, text, "a list of names of metrics in JSON")
    return tuple(names)


def _times(options: Options, environ: Mapping[str, str]) -> Times:
    every_s = options.get("checkpoint_every_s")
    if every_s is not None or ENV_CHECKPOINT_EVERY_S in environ:
        every_s = _seconds(every_s, environ, ENV_CHECKPOINT_EVERY_S, CHECKPOINT_EVERY_S)
    return Times(
        checkpoint_every_s=every_s,
        report_every_s=_seconds(
            options.get("report_every_s"), environ, ENV_REPORT_EVERY_S, REPORT_EVERY_S
        ),
        stop_timeout_s=_seconds(
            options.get("stop_timeout_s"), environ, ENV_STOP_TIMEOUT_S, STOP_TIMEOUT_S
        ),
        last_report_s=_seconds(None, environ, ENV_LAST_REPORT_S, LAST_REPORT_S),
    )


def params() -> dict[str, bool | int | float | str]:
    """Return the job's parameters by name: `params` of its job file, or of its trial in
    a search.

    Empty if the job has none. Raises InputError if the environment has no valid JSON.
    """
    text = os.environ.get(ENV_PARAMS, "")
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise InputError(ENV_PARAMS, text, "a JSON object")
    return found


def _seed(given: int) -> int:
    if given < 0:
        raise InputError("init(seed)", given, "a whole number >= 0")
    return given


def _draws(given: str) -> Draws:
    if given not in set(Draws):
        raise InputError("init(random)", given, " or ".join(Draws))
    return Draws(given)


def _contract(given: str | None, spec: JobSpec | None) -> RescaleContract:
    allowed = ", ".join(RescaleContract)
    if given is not None and given not in set(RescaleContract):
        raise InputError("init(contract)", given, allowed)
    if spec is None:
        return RescaleContract(given or RescaleContract.FIXED)
    if given is not None and given != spec.contract:
        logger.warning(
            "the job file's contract %s replaces init(contract=%r)",
            spec.contract,
            given,
        )
    return spec.contract


def _placement(environ: Mapping[str, str], world_size: int) -> Placement:
    """Return replicas per node: as the scheduler says, else torchrun's equal nodes.

    A job's command may be torchrun itself: then the replicas are torchrun's.
    """
    text = None if TORCHRUN_MARK in environ else environ.get(ENV_PLACEMENT)
    if text is None:
        local = min(
            _count(environ, "LOCAL_WORLD_SIZE", world_size, at_least=1), world_size
        )
        full, rest = divmod(world_size, local)
        return Placement((local,) * full + ((rest,) if rest else ()))
    shape = tuple(int(part) for part in text.split(",") if part.strip().isdigit())
    if sum(shape) != world_size or text.count(",") + 1 != len(shape) or 0 in shape:
        raise InputError(
            ENV_PLACEMENT,
            text,
            f"replicas per node, such as 2,1, that sum to {world_size}",
        )
    return Placement(shape)


def _count(
    environ: Mapping[str, str], name: str, default: int, at_least: int = 0
) -> int:
    text = environ.get(name, str(default)).strip()
    if not text.isdigit() or int(text) < at_least:
        raise InputError(name, text, f"a whole number >= {at_least}")
    return int(text)


def _seconds(
    given: float | None, environ: Mapping[str, str], name: str, default: float
) -> float:
    text = environ.get(name, default) if given is None else given
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < float("inf"):
        raise InputError(name, text, "a number of seconds > 0")
    return value


def _json(environ: Mapping[str, str], name: str, kind: type[T]) -> T | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            name, text, f"JSON ({error.msg} at character {error.pos})"
        ) from None
    return from_json(kind, data, name)
