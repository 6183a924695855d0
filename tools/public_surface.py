"""The public surface as a list of lines: what others may build on.

`python -m tools.public_surface` prints it, `--write` renews
tests/golden/public_surface.txt; a test compares.
"""

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from fastapi.routing import APIRoute

from coadapt import model
from coadapt.cli import state_dir
from coadapt.cli.main import app
from coadapt.cli.verbs import VERBS, LazyGroup, load
from coadapt.core import commands, events
from coadapt.executors import EXECUTORS
from coadapt.model import contract_env
from coadapt.policies import POLICIES
from coadapt.service.app import router
from coadapt.service.jobfile import BatchSection, JobFile, ResourcesSection
from tools.house_rules import PACKAGE, ROOT

GOLDEN = ROOT / "tests" / "golden" / "public_surface.txt"


def lines() -> list[str]:
    """Return every public name, one per line, sorted within its kind."""
    kinds = (
        _python_names,
        _wire_keys,
        _environment_names,
        _cli_flags,
        _http_routes,
        _job_file_keys,
        _metrics,
    )
    return [line for kind in kinds for line in sorted(set(kind()))]


def _python_names() -> Iterator[str]:
    """What each package's __init__ exports; read as text, so that nothing heavy is
    imported.

    Each module of train/integrations is a surface of its own: it needs its own library.
    What a registry names is found there, whatever it exports.
    """
    registered = {
        row.split(":")[0] for row in (*EXECUTORS.values(), *POLICIES.values())
    }
    for path in sorted(
        {*PACKAGE.rglob("__init__.py"), *PACKAGE.glob("train/integrations/*.py")}
    ):
        module = path.parent if path.name == "__init__.py" else path.with_suffix("")
        package = ".".join(("coadapt", *module.relative_to(PACKAGE).parts))
        if package in registered:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "__all__"
            ):
                yield from (
                    f"python {package}.{name}" for name in ast.literal_eval(node.value)
                )


def _wire_keys() -> Iterator[str]:
    """Fields of all that goes into a journal or over HTTP."""
    for module in (model, events, commands):
        for name, kind in vars(module).items():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                fields = [field for field in dataclasses.fields(kind) if field.init]
                yield from (f"wire {name}.{field.name}" for field in fields)


def _environment_names() -> Iterator[str]:
    for module in (contract_env, state_dir):
        yield from (
            f"env {value}"
            for name, value in vars(module).items()
            if name.startswith("ENV_")
        )


def _cli_flags() -> Iterator[str]:
    command = typer.main.get_command(app)
    yield from _flags_of(command, "coadapt")


def _flags_of(command: Any, path: str) -> Iterator[str]:
    for parameter in command.params:
        shown = "/".join((*parameter.opts, *parameter.secondary_opts))
        yield (
            f"cli {path} "
            f"{shown if parameter.param_type_name == 'option' else parameter.name.upper()}"
        )
    for name, sub in subcommands_of(command):
        yield f"cli {path} {name}"
        yield from _flags_of(sub, f"{path} {name}")


def subcommands_of(command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the command of each verb below `command`."""
    if isinstance(command, LazyGroup):
        for name, verb in VERBS.items():
            yield name, load(name, verb)
    else:
        yield from getattr(command, "commands", {}).items()


def _http_routes() -> Iterator[str]:
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield from (
                f"http {method} {route.path}" for method in sorted(route.methods or ())
            )


def _job_file_keys() -> Iterator[str]:
    for prefix, section in (
        ("", JobFile),
        ("resources.", ResourcesSection),
        ("batch.", BatchSection),
    ):
        yield from (f"job-file {prefix}{name}" for name in section.model_fields)


def metric_names() -> Iterator[str]:
    """Yield the Prometheus metrics, which only the service declares."""
    for path in sorted((PACKAGE / "service").rglob("*.py")):
        yield from re.findall(
            r"\"(coadapt_[a-z0-9_]+)\"", path.read_text(encoding="utf-8")
        )


def _metrics() -> Iterator[str]:
    return (f"metric {name}" for name in metric_names())


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        Path(GOLDEN).write_text("\n".join(lines()) + "\n", encoding="utf-8")
    else:
        print("\n".join(lines()))
