"""What the fuzzer makes its inputs of: values that nobody means, and bodies that are
lawful as they stand.
"""

from typing import Any

NUMBERS: list[object] = [
    0,
    -1,
    1,
    2,
    7,
    2**31,
    2**53,
    2**63,
    10**15,
    10**21,
    10**300,
    10**400,
    -(10**400),
    1e-300,
    1e15,
    1e300,
    0.1,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    5e-324,
    1.5,
    100_000,
    1_000_000_001,
]
TEXTS: list[object] = [
    "",
    " ",
    "inf",
    "-inf",
    "nan",
    "x" * 300,
    "x" * 100_001,
    "\x00",
    "\x1b[2J",
    "\ud800",
    "é",
    "名前",
    "🚀",
    "\u202e",
    "1..4",
    "8..2",
    "1..999999999",
    "٣",
    "0x10",
    "1e3",
    "yes",
    "~",
    "../..",
    "/",
    "a\nb",
    "%00",
    "<script>",
    "{}",
    "'; DROP TABLE events; --",
    "fixed",
    "adaptive",
    "self",
    "frozen",
]
OTHERS: list[object] = [None, True, False, [], {}, [1], {"a": 1}, [[]], {"": 0}, [None]]
TOKENS = [
    "\n",
    ":",
    "- ",
    "? ",
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
    "!!timestamp ",
    "!!python/object:x ",
    "|",
    ">",
    "'",
    '"',
    "{",
    "}",
    "[",
    "]",
    "#",
    "%",
    "\t",
    "\x00",
    "\x07",
    "\ufeff",
    "\u2028",
    "---\n",
    "...\n",
    "yes",
    "~",
    ".inf",
    ".nan",
    "9" * 5_000,
    "[" * 3_000,
    "1:30",
    "010",
    "2001-99-99",
    "0o7",
    "=",
    "@",
    "`",
    "\\",
    "name: b\n",
    "batch: ",
    "\udcff",
]

FILE = """\
name: fuzz
run: echo hello
setup: ""
workdir: /
envs: {A: 1, B: text}
resources: {gpus: 1..4, requested: 2, gpu_types: [cpu]}
batch: {initial: 8, max: 256, requested: 16, min_atomic: 1, max_atomic: 64, accumulation: true}
contract: adaptive
tenant: team
priority: 1
deadline: 4h
length: {samples: 100000}
application: app
max_failures: 1
hang_timeout: 600
checkpoints: file:///tmp/checkpoints
"""
JOB: dict[str, Any] = {
    "name": "fuzz",
    "run": "echo hello",
    "workdir": "/",
    "envs": {"A": 1, "B": "text"},
    "setup": "true",
    "resources": {"gpus": "1..4", "requested": 2, "gpu_types": ["cpu"]},
    "batch": {
        "initial": 8,
        "max": 256,
        "min_atomic": 1,
        "max_atomic": 64,
        "accumulation": True,
    },
    "contract": "adaptive",
    "tenant": "team",
    "application": "app",
    "max_failures": 1,
    "priority": 1,
    "deadline": "4h",
    "length": {"samples": 100_000},
    "hang_timeout": 600,
    "checkpoints": "file:///tmp/checkpoints",
}
SCHEDULE = {
    "initial": 8,
    "schedule": "0:8 250:16 1K:32",
    "schedule_unit": "tokens",
    "tokens_per_sample": 2,
}
JOBS: list[dict[str, Any]] = [
    JOB,
    {**JOB, "contract": "schedule", "batch": SCHEDULE},
    {
        **JOB,
        "contract": "self",
        "batch": {"initial": 8, "max": 64, "rule": "accordion(every=5)"},
    },
]
PARAMS = {"alpha_c": 0.1, "beta_c": 0.01, "alpha_r": 0.1, "beta_r": 0.0, "gamma": 1.5}
REPORT: dict[str, Any] = {
    "generation": 1,
    "report": {
        "progress": 10.0,
        "progress_target": 1000.0,
        "samples": 20.0,
        "batch": {"total": 16, "atomic": 8, "accumulation": 1},
        "by_type": {
            "cpu": {"params": PARAMS, "num_replicas_profiled": 2, "max_atomic": 64}
        },
        "efficiency_points": [
            {"progress": 5.0, "total": 32, "low": 0.8, "expected": 0.9, "high": 1.0}
        ],
        "grad": {"sqr": 0.5, "var": 2.0, "noise_scale_stderr": 1.0},
        "forecast": {"remaining_steps": 100.0, "step_time_s": [0.5, 0.3]},
        "step_time_s": 0.5,
        "metrics": {"loss": 0.5},
    },
}
TRAINER_STATUS: dict[str, Any] = {
    "trainerStatus": {
        "progressPercentage": 45,
        "estimatedRemainingSeconds": 9,
        "metrics": [{"name": "loss", "value": "0.5"}],
        "lastUpdatedTime": "2025-01-23T10:30:45Z",
    }
}
RESCALED: dict[str, Any] = {
    "generation": 1,
    "rescale_s": 1.5,
    "pause": {"agree": 0.1, "first step": 0.2},
}
PRUNE: dict[str, Any] = {"keep_days": 1.0, "logs_mib": 100}
TENANT: dict[str, Any] = {"weight": 2.0, "quota_gpus": 4, "priority": 1}
