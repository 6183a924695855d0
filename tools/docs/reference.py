"""Writes the reference pages from the code: commands, job file, Python, HTTP, metrics.

The site's build calls this each time, so that the pages cannot be out of date.
`python -m tools.docs.reference FOLDER` writes them alone.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import typer
import typer.main
from fastapi import FastAPI
from pydantic import BaseModel

from coadapt.cli.main import app
from coadapt.service.app import open_router, router
from coadapt.service.jobfile import (
    BatchSection,
    JobFile,
    LengthSection,
    ResourcesSection,
)
from coadapt.service.nodes import router as nodes_router
from coadapt.service.pruning import router as pruning_router
from coadapt.service.studies.routes import router as studies_router
from coadapt.service.studies.search_file import SearchSection
from coadapt.service.tenants import router as tenants_router
from coadapt.service.usage import router as usage_router
from tools.house_rules import PACKAGE
from tools.public_surface import subcommands_of

# The packages that scripts, policies and engines import from.
PACKAGES = {
    "coadapt.client": "for programs that submit jobs: `from coadapt import Client`",
    "coadapt.train": "for training scripts",
    "coadapt.policies": "for scheduling policies",
    "coadapt.model": "the values that policies and engines exchange with the core",
    "coadapt.executors": "for engines",
}
JOB_FILE_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("", JobFile),
    ("resources.", ResourcesSection),
    ("batch.", BatchSection),
    ("length.", LengthSection),
    ("search.", SearchSection),
)
# Prometheus adds this to the name of a counter.
COUNTERS = frozenset({"Counter", "CounterMetricFamily", "counter"})
METRIC_KINDS = {
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "_gauge": "gauge",
    "_job_gauge": "gauge",
    "Histogram": "histogram",
    "histogram": "histogram",
}


def pages() -> dict[str, str]:
    """Return the reference pages: file name to Markdown."""
    return {
        "cli.md": cli_page(),
        "job-file.md": job_file_page(),
        "python.md": python_page(),
        "http.md": http_page(),
        "metrics.md": metrics_page(),
    }


def write(folder: Path) -> None:
    """Write the reference pages into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


# Commands


def cli_page() -> str:
    """Return the page of all commands, in the order of `coadapt --help`."""
    command = typer.main.get_command(app)
    parts = [
        "# Commands\n",
        (
            "Every command but `up`, `executors`, `elastic-jobs`, `doctor` and "
            "`rotate-token` prints JSON with `--json`. "
            "[Exit codes](../operate.md#watching) are the same for all commands.\n"
        ),
    ]
    parts += _command_parts(command, "coadapt")
    return "\n".join(parts)


def _command_parts(command: Any, path: str) -> Iterator[str]:
    context = typer.Context(command, info_name=path)
    subcommands = dict(subcommands_of(command))
    if path != "coadapt":
        yield f"## {path}\n"
        yield _paragraphs(command.help or "") + "\n"
        if not subcommands:
            usage = command.get_usage(context).removeprefix("Usage: ")
            yield f"```text\n{' '.join(usage.split())}\n```\n"
        rows = [each.get_help_record(context) for each in command.params]
        rows = [row for row in rows if row is not None]
        if rows:
            yield "| argument or option | meaning |"
            yield "|---|---|"
            for name, text in rows:
                yield f"| `{_cell(name)}` | {_prose_cell(text)} |"
            yield ""
    for name, child in subcommands.items():
        yield from _command_parts(child, f"{path} {name}")


# The job file


def job_file_page() -> str:
    """Return the page of all keys of a job file."""
    parts = [
        "# Job file keys\n",
        (
            "The [guide](../job-file.md) explains them by example. An unknown key is an "
            "error. `coadapt submit` reports the key, the value and what is allowed.\n"
        ),
        "| key | default | allowed |",
        "|---|---|---|",
    ]
    for prefix, section in JOB_FILE_SECTIONS:
        for name, field in section.model_fields.items():
            default = _default_text(field)
            parts.append(
                f"| `{prefix}{name}` | {default} | {_prose_cell(field.description or '')} |"
            )
    return "\n".join(parts) + "\n"


def _default_text(field: Any) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        made = field.default_factory()
        return "" if isinstance(made, BaseModel) else f"`{made!r}`"
    value = field.default
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f"`{value}`" if value else ""
    return f"`{value}`"


# HTTP


def http_page() -> str:
    """Return the page of all routes, from the same document as /v1/openapi.json."""
    api = FastAPI()
    for part in (
        router,
        tenants_router,
        nodes_router,
        pruning_router,
        studies_router,
        usage_router,
        open_router,
    ):
        api.include_router(part)
    document = api.openapi()
    schemas = document.get("components", {}).get("schemas", {})
    parts = [
        "# HTTP API\n",
        (
            "`GET /v1/openapi.json` returns the full description with all schemas. Every "
            "route but `/v1/healthz` needs `Authorization: Bearer TOKEN` "
            "([security](../security.md)). An error has one shape: "
            '`{"error": {"field", "value", "allowed", "message"}}`. '
            "`GET /metrics` returns [metrics](metrics.md) for Prometheus.\n"
        ),
    ]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            parts += _route_parts(path, method, route, schemas)
    return "\n".join(parts)


def _route_parts(
    path: str, method: str, route: dict[str, Any], schemas: dict[str, Any]
) -> Iterator[str]:
    yield f"## {method.upper()} {path}\n"
    yield _paragraphs(route.get("description", "")) + "\n"
    rows = [
        (each["name"], each["in"], each["schema"], each.get("required", False))
        for each in route.get("parameters", [])
    ]
    rows += _body_rows(route, schemas)
    if rows:
        yield "| name | in | type | required |"
        yield "|---|---|---|---|"
        for name, place, schema, required in rows:
            needed = "yes" if required else "no"
            yield f"| `{name}` | {place} | {_schema_text(schema)} | {needed} |"
        yield ""


def _body_rows(
    route: dict[str, Any], schemas: dict[str, Any]
) -> list[tuple[str, str, dict[str, Any], bool]]:
    content = route.get("requestBody", {}).get("content", {})
    reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    schema = schemas.get(reference.rpartition("/")[2], {})
    required = schema.get("required", [])
    return [
        (name, "body", each, name in required)
        for name, each in schema.get("properties", {}).items()
    ]


def _schema_text(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_schema_text(each) for each in schema["anyOf"])
    text = str(schema.get("type", schema.get("$ref", "object").rpartition("/")[2]))
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", "&gt;"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "&lt;"),
        )
        if key in schema
    ]
    if "enum" in schema:
        text = ", ".join(f"`{each}`" for each in schema["enum"])
    if "default" in schema and schema["default"] not in (None, "", {}):
        bounds.append(f"default `{schema['default']}`")
    return ", ".join([text, *bounds])


# Metrics


def metrics_page() -> str:
    """Return the page of all Prometheus metrics, as they are declared in the code."""
    parts = [
        "# Metrics\n",
        (
            "`GET /metrics` returns these in Prometheus' text format. "
            "[Operating Coadapt](../operate.md#the-api) has suggested alerts. Counters "
            "start at 0 with the scheduler.\n"
        ),
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    rows = sorted(_metrics())
    parts += [
        f"| `{name}` | {kind} | {labels} | {_prose_cell(text)} |"
        for name, kind, labels, text in rows
    ]
    return "\n".join(parts) + "\n"


def _metrics() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, kind, labels and help text of each metric that a call declares."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if '"coadapt_' not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            found = _declared(node)
            if found is not None:
                yield found


def _declared(node: ast.AST) -> tuple[str, str, str, str] | None:
    if not isinstance(node, ast.Call) or len(node.args) < 2:
        return None
    first, second = node.args[:2]
    if not (isinstance(first, ast.Constant) and isinstance(second, ast.Constant)):
        return None
    name = str(first.value)
    if not name.startswith("coadapt_"):
        return None
    called = ast.unparse(node.func).rpartition(".")[2]
    kind = METRIC_KINDS.get(called, "counter")
    if called in COUNTERS:
        name += "_total"
    labels = [
        each.value
        for part in (*node.args[2:], *(word.value for word in node.keywords))
        for each in (part.elts if isinstance(part, ast.List) else [part])
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    if called == "_job_gauge":
        labels.insert(0, "job")
    return name, kind, ", ".join(f"`{label}`" for label in labels), str(second.value)


# Python


def python_page() -> str:
    """Return the page of the public names that other code imports."""
    parts = [
        "# Python\n",
        (
            "The names that scripts, policies and engines may import. All arguments "
            "after `*` are given by name. Bad input raises `InputError`, a `ValueError` "
            "that names the field, the value and what is allowed.\n"
        ),
    ]
    for package, purpose in PACKAGES.items():
        module = importlib.import_module(package)
        parts.append(f"## {package}\n")
        parts.append(f"{purpose[0].upper()}{purpose[1:]}.\n")
        for name in module.__all__:
            parts += _name_parts(name, getattr(module, name))
    return "\n".join(parts)


def _name_parts(name: str, item: object) -> Iterator[str]:
    yield f"### {name}\n"
    if inspect.isclass(item):
        yield from _class_parts(name, item)
    elif inspect.isroutine(item):
        yield _signature(name, cast("Callable[..., object]", item))
        yield _docstring(item)
    else:
        value = repr(item)
        if len(value) <= 70 and " at 0x" not in value:
            yield f"```python\n{name} = {value}\n```\n"


def _class_parts(name: str, item: type) -> Iterator[str]:
    tree = _tree(item)
    if isinstance(tree, ast.ClassDef):
        bases = [ast.unparse(base) for base in tree.bases]
        lines = [f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"]
        lines += [
            f"    {ast.unparse(field)}"
            for field in tree.body
            if isinstance(field, ast.AnnAssign) and _is_public(field.target)
        ]
        lines += [
            f"    {ast.unparse(field)}"
            for field in tree.body
            if isinstance(field, ast.Assign) and _is_public(field.targets[0])
        ]
        if len(lines) > 1:
            lines[0] = lines[0].removesuffix("()")
            yield "```python\n" + "\n".join(lines) + "\n```\n"
        yield _docstring(item)
        for member in tree.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                yield f"#### {name}.{member.name}\n"
                yield _function_text(member)
                yield _text(ast.get_docstring(member) or "")


def _is_public(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and not target.id.startswith("_")


def _signature(name: str, item: Callable[..., object]) -> str:
    tree = _tree(item)
    if isinstance(tree, ast.FunctionDef):
        return _function_text(tree)
    return f"```python\n{name}(...)\n```\n"


def _function_text(tree: ast.FunctionDef) -> str:
    """Return the function's head as code, one argument per line if it is long."""
    returns = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    decorators = {ast.unparse(each) for each in tree.decorator_list}
    if "property" in decorators:
        return (
            f"```python\n{tree.name}{returns.replace(' ->', ':')}  # read-only\n```\n"
        )
    if tree.args.args and tree.args.args[0].arg in ("self", "cls"):
        del tree.args.args[0]
    arguments = ast.unparse(tree.args)
    one_line = f"def {tree.name}({arguments}){returns}"
    if len(one_line) <= 88:
        return f"```python\n{one_line}\n```\n"
    split = _split_arguments(tree.args)
    body = "".join(f"    {argument},\n" for argument in split)
    return f"```python\ndef {tree.name}(\n{body}){returns}\n```\n"


def _split_arguments(arguments: ast.arguments) -> list[str]:
    """Return each argument as text; each is the only one of a list of its own."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    split = [
        _argument(each, default)
        for each, default in zip(
            positional, [*missing, *arguments.defaults], strict=True
        )
    ]
    if arguments.vararg is not None:
        split.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        split.append("*")
    split += [
        _argument(each, default)
        for each, default in zip(
            arguments.kwonlyargs, arguments.kw_defaults, strict=True
        )
    ]
    if arguments.kwarg is not None:
        split.append(f"**{_argument(arguments.kwarg, None)}")
    return split


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation is not None:
        text += f": {ast.unparse(argument.annotation)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _tree(item: object) -> ast.stmt | None:
    try:
        source = textwrap.dedent(inspect.getsource(cast("Any", item)))
    except (OSError, TypeError):
        return None
    return ast.parse(source).body[0]


def _docstring(item: object) -> str:
    text = inspect.getdoc(item) or ""
    generated = text.startswith(f"{getattr(item, '__name__', '')}(")
    return "" if generated else _text(text)


# Text


def _text(docstring: str) -> str:
    """Return a docstring as Markdown: its paragraphs, each on one line."""
    return _paragraphs(inspect.cleandoc(docstring)) + "\n" if docstring else ""


def _paragraphs(text: str) -> str:
    blocks = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(_escaped(" ".join(block.split())) for block in blocks)


def _escaped(text: str) -> str:
    """Escape what Markdown would read as mark-up outside of code spans."""
    spans = re.split(r"(`[^`]*`)", text)
    return "".join(
        span
        if span.startswith("`")
        else re.sub(r"([*<\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", span)
        for span in spans
    )


def _prose_cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.docs.reference FOLDER")
    write(Path(sys.argv[1]))
