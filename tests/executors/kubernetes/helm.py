"""Helm's own library in a process of its own: `tools/helm.sh` installs it, once per
user.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.executors.kubernetes.control_plane import CACHE

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "coadapt"
LIBRARY = CACHE / "coadapt" / "engines" / "helm-0.2.2"
RELEASE = "coadapt"
NAMESPACE = "coadapt"

# Reads a call from standard input and prints its result, or the error, as JSON.
_CALL = """
import json, sys
import helm_python as helm

call = json.load(sys.stdin)
place = {"name": call["release"], "namespace": call["namespace"]}
try:
    if call["verb"] == "lint":
        result = helm.lint(call["chart"], call["values"], strict=True)
    elif call["verb"] == "package":
        result = helm.package(call["chart"], destination=call["destination"])
    else:
        with helm.Chart.load(call["chart"]) as chart:
            chart.validate_schema(call["values"])
            result = chart.render(call["values"], **place)
except helm.HelmError as error:
    result = {"error": str(error)}
json.dump(result, sys.stdout)
"""


class HelmError(Exception):
    """Helm's own message."""


def why_missing() -> str | None:
    """Return why Helm cannot be used here, None if it can."""
    return None if LIBRARY.is_dir() else "no Helm: tools/helm.sh installs it"


def call(verb: str, values: dict[str, Any] | None = None, **more: str) -> Any:
    """Return what Helm answers. Raises HelmError with its message."""
    asked = {
        "verb": verb,
        "chart": str(CHART),
        "values": values or {},
        "release": RELEASE,
        "namespace": NAMESPACE,
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", _CALL],
        env={**os.environ, "PYTHONPATH": str(LIBRARY)},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise HelmError(answer["error"])
    return answer


def rendered(values: dict[str, Any] | None = None, **more: str) -> list[Any]:
    """Return the objects that the chart gives with these values."""
    texts = call("render", values, **more)
    return [
        each
        for name, text in texts.items()
        if name.endswith(".yaml")
        for each in yaml.safe_load_all(text)
        if each
    ]
