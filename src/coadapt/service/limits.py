"""Limits of numbers and texts of jobs. Each limit is larger than any known use, and
small enough that nothing breaks.
"""

# Llama 3 (2024) trained on 16,384 GPUs, with up to 16 million tokens per step.
GPUS_MAX = 100_000
SAMPLES_MAX = 1_000_000_000
SCHEDULE_LENGTH_MAX = 10_000  # characters
ACCUMULATION_MAX = 1_000_000
FAILURES_MAX = 1_000_000
GENERATION_MAX = 1_000_000_000
SECONDS_MAX = 1e9  # 30 years
SETUP_TIMEOUT_MIN_S = 1.0
HANG_TIMEOUT_MIN_S = 60.0  # two reports, lost or late
PRIORITY_MAX = 1_000_000_000
WEIGHT_MAX = 1e6
TENANTS_MAX = 10_000
# Costs and budgets, in the currency of the prices.
COST_MAX = 1e12
COST_MIN = 1e-6

JOB_FILE_BYTES_MAX = 1_000_000  # as much as the scheduler takes in one request
NAME_LENGTH_MAX = 100  # characters
# Linux takes at most 131,072 bytes for one argument or one variable of a process
# (MAX_ARG_STRLEN).
COMMAND_BYTES_MAX = 100_000
ENVS_BYTES_MAX = 100_000  # all of them, names and values
ENVS_MAX = 1_000
PATH_BYTES_MAX = 4_000  # PATH_MAX is 4,096
NAMES_MAX = 100  # of metrics, of GPU types
LOG_BYTES_MAX = 10**15  # of one stream of logs, for an offset
KEEP_DAYS_MAX = 36_500.0
LOGS_MIB_MAX = 2**40
SEQ_MAX = 10**15  # of events in a journal
