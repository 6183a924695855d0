"""The contract between an executor and the replicas that it starts: environment names and exit codes.

Beside these a replica gets torchrun's own: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT. Names only: reading the environment is the business of train/env.py and cli.
"""

ENV_JOB = "COADAPT_JOB"  # job id
ENV_GENERATION = "COADAPT_GENERATION"  # decimal
ENV_SPEC = "COADAPT_SPEC"  # JobSpec as wire JSON, without its launch part
ENV_BATCH = "COADAPT_BATCH"  # BatchConfig as wire JSON; unset: the job picks its own
ENV_PLACEMENT = "COADAPT_PLACEMENT"  # replicas per node, "4,4,2"
ENV_GPU_TYPE = "COADAPT_GPU_TYPE"
ENV_URL = "COADAPT_URL"  # the scheduler's API, http://127.0.0.1:PORT
ENV_TOKEN = "COADAPT_TOKEN"  # bearer token for it
ENV_CHECKPOINT_DIR = "COADAPT_CHECKPOINT_DIR"  # survives generations; private to the job

# A process that saves its state on SIGTERM puts a file named by its id here, which holds EXIT_STOPPED once
# it is saved: so it is asked itself, and heard, whatever stands between it and its executor.
ENV_LISTENERS_DIR = "COADAPT_LISTENERS_DIR"

# Where replicas hear of their next generation (model/rescale.py); unset: they only ever stop.
ENV_RESCALE_DIR = "COADAPT_RESCALE_DIR"
ENV_JOINING = "COADAPT_JOINING"  # "1": the others train already; RANK and WORLD_SIZE are those to come

# Seconds; unset: the defaults of train/env.py.
ENV_CHECKPOINT_EVERY_S = "COADAPT_CHECKPOINT_EVERY_S"
ENV_REPORT_EVERY_S = "COADAPT_REPORT_EVERY_S"
ENV_STOP_TIMEOUT_S = "COADAPT_STOP_TIMEOUT_S"  # from SIGTERM to a forced end of the replica

EXIT_PEER_LOST = 69  # another replica failed first (EX_UNAVAILABLE): never the cause of a job's end
EXIT_STOPPED = 75  # told to stop, state is saved (EX_TEMPFAIL of sysexits.h: try again later)
