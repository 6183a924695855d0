"""The contract between an executor and the replicas that it starts: environment names
and exit codes.

Beside these a replica gets torchrun's own: RANK, LOCAL_RANK, WORLD_SIZE,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Names only: reading the environment is the
business of train/env.py and cli.
"""

from collections.abc import Mapping

ENV_JOB = "COADAPT_JOB"  # job id
ENV_GENERATION = "COADAPT_GENERATION"  # decimal
ENV_SPEC = "COADAPT_SPEC"  # JobSpec as wire JSON, without its launch part
ENV_BATCH = "COADAPT_BATCH"  # BatchConfig as wire JSON; unset: the job picks its own
ENV_PLACEMENT = "COADAPT_PLACEMENT"  # replicas per node, "4,4,2"
ENV_GPU_TYPE = "COADAPT_GPU_TYPE"
CPU_SLOT_TYPE = "cpu"  # the type of a slot that stands for a CPU core
ENV_URL = "COADAPT_URL"  # the scheduler's API, http://127.0.0.1:PORT
ENV_TOKEN = "COADAPT_TOKEN"  # bearer token for it
ENV_CHECKPOINT_DIR = (
    "COADAPT_CHECKPOINT_DIR"  # survives generations; private to the job
)
ENV_CHECKPOINT_URL = (
    "COADAPT_CHECKPOINT_URL"  # where checkpoints are kept instead; private to the job
)

# A process that saves its state on SIGTERM puts a file named by its id here, which
# holds EXIT_STOPPED once it is saved: so it is asked itself, and heard, whatever stands
# between it and its executor. coadapt.train writes one of three words and the replica's
# name: a run that began and did not say that it ended is none that succeeded.
ENV_LISTENERS_DIR = "COADAPT_LISTENERS_DIR"
LISTENER_TRAINS = "training"
LISTENER_ENDED = "ended"
LISTENER_FAILED = "failed"
LISTENER_WORDS = frozenset({LISTENER_TRAINS, LISTENER_ENDED, LISTENER_FAILED})

# The job's parameters: all as a JSON object, and each as text in a variable of its own.
ENV_PARAMS = "COADAPT_PARAMS"
PARAM_PREFIX = "COADAPT_PARAM_"

# Where replicas hear of their next generation (model/rescale.py); unset: they only ever
# stop.
ENV_RESCALE_DIR = "COADAPT_RESCALE_DIR"
# Or, without a disk in common with their launcher, where it serves the same notes, and
# what opens just these.
ENV_CONTROL_URL = "COADAPT_CONTROL_URL"
ENV_CONTROL_TOKEN = "COADAPT_CONTROL_TOKEN"
# the job's, where its launcher is on another machine than its replicas
ENV_WORKDIR = "COADAPT_WORKDIR"
# "1": the replica lives elsewhere already, and has a new launcher
ENV_RESUMED = "COADAPT_RESUMED"
# where other nodes' replicas reach this one; unset: all are here
ENV_NODE_ADDRESS = "COADAPT_NODE_ADDRESS"
ENV_NODE = "COADAPT_NODE"  # the replica's node, by its id
# "1": the others train already; RANK and WORLD_SIZE are those to come
ENV_JOINING = "COADAPT_JOINING"

# Kubeflow's trainer status protocol (KEP-2779), which other trainers speak by
# themselves: where they tell how far they are, and the file with the token for it.
ENV_STATUS_URL = "KUBEFLOW_TRAINER_SERVER_URL"
ENV_STATUS_TOKEN_FILE = "KUBEFLOW_TRAINER_SERVER_TOKEN"
STATUS_ROUTE = "trainer-status"

# Seconds; unset: the defaults of train/env.py.
ENV_CHECKPOINT_EVERY_S = "COADAPT_CHECKPOINT_EVERY_S"
ENV_REPORT_EVERY_S = "COADAPT_REPORT_EVERY_S"
ENV_STOP_TIMEOUT_S = (
    "COADAPT_STOP_TIMEOUT_S"  # from SIGTERM to a forced end of the replica
)
# How long a script that has ended waits for the scheduler to take its last report.
ENV_LAST_REPORT_S = "COADAPT_LAST_REPORT_S"
# A metric of which each logged value is reported, not only the newest, and names that
# are logged with it, such as the epoch: a list in JSON.
ENV_LOGGED = "COADAPT_LOGGED"
# "0": the replicas of a trial are not forked from a process that has imported torch.
ENV_FORK = "COADAPT_FORK"

EXIT_NO_WORKDIR = 79  # the node has no such directory as the job's; nothing was run
EXIT_PEER_LOST = (
    69  # another replica failed first (EX_UNAVAILABLE): never the cause of a job's end
)
EXIT_STOPPED = (
    75  # stopped by order, state is saved (EX_TEMPFAIL of sysexits.h: try again later)
)

# Two lists keep the environments of three parties apart: the scheduler's, a job's own
# `envs`, the contract's.
#
# What the scheduler was started with is its operator's business: keys of clouds, tokens
# of registries. So of its environment a job gets only what is named here: how programs
# are found, what a machine is like, and how numerical libraries are set. Proxies are
# not among them (their URLs may hold passwords), nor is anything of Coadapt's own. An
# operator adds names by the executor's setting `pass_env`.
PASSED_ENVS = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR",
    "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "VIRTUAL_ENV",
    "CONDA_DEFAULT_ENV", "CONDA_EXE", "CONDA_PREFIX", "CONDA_PYTHON_EXE", "CONDA_SHLVL",
    "SSL_CERT_DIR", "SSL_CERT_FILE", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
})  # fmt: skip
PASSED_ENV_PREFIXES = (
    "LC_", "CUDA_", "CUDNN_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH_", "PYTORCH_",
    "OMP_", "KMP_", "MKL_", "OPENBLAS_",
)  # fmt: skip

# And a job's own `envs` may not set what an executor does: a replica that took
# another's rank, checkpoints or generation for its own would break promises that were
# made to it. What only tunes the trainer it may.
SETTABLE_ENVS = frozenset(
    {
        ENV_CHECKPOINT_EVERY_S,
        ENV_FORK,
        ENV_LAST_REPORT_S,
        ENV_LOGGED,
        ENV_REPORT_EVERY_S,
        ENV_STOP_TIMEOUT_S,
    }
)
RESERVED_ENVS = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES", ENV_STATUS_URL, ENV_STATUS_TOKEN_FILE,
})  # fmt: skip
RESERVED_ENV_PREFIX = "COADAPT_"


def is_reserved_env(name: str) -> bool:
    """Return whether an executor sets the variable `name`, so that a job's `envs` may
    not.
    """
    return name in RESERVED_ENVS or (
        name.startswith(RESERVED_ENV_PREFIX) and name not in SETTABLE_ENVS
    )


def passed_envs(
    variables: Mapping[str, str], extra: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Return what a job gets of the scheduler's environment. `extra`: further names, of
    the operator's.
    """
    return {
        name: value
        for name, value in variables.items()
        if name in PASSED_ENVS or name in extra or name.startswith(PASSED_ENV_PREFIXES)
    }
