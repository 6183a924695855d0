"""What `coadapt up` runs with: the command line's word, else the settings file's, else
the default.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from coadapt.cli.state_dir import StateDir
from coadapt.core.config import SchedulerConfig
from coadapt.core.node_buying import SIZING_S
from coadapt.executors.options import OptionText
from coadapt.model import InputError
from coadapt.model.errors import reason_of, suggestion
from coadapt.model.prices import Prices
from coadapt.model.wire import from_json
from coadapt.service.limits import KEEP_DAYS_MAX, LOGS_MIB_MAX

SETTINGS_FILE = "coadapt.yaml"
OPTIONS = "executor_options"
SECONDS_MAX = 86_400.0
PORT_MAX = 65_535
# Jobs that are submitted together are looked at together.
DEFAULT_REACTION_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """The keys of the settings file; as options of `coadapt up` its help explains them.
    Times in seconds.
    """

    executor: str = "local"
    policy: str = "castor"
    round: float = 60.0
    reaction: float = DEFAULT_REACTION_S
    settle: float = SchedulerConfig().settle_s
    in_place: bool = True
    grace: float = 30.0
    host: str = "127.0.0.1"
    port: int | None = None
    expose: bool = False
    keep_days: float = 90.0
    logs_mib: int = 20 * 1024
    prices: Prices | None = None
    offers: tuple[str, ...] = ()
    sizer: str | None = None
    sizing: float = SIZING_S


def read_settings(
    state_dir: StateDir,
    config: Path | None,
    given: Mapping[str, object],
    options: Sequence[str],
) -> tuple[UpSettings, dict[str, OptionText]]:
    """Return the settings and the executor's options.

    config: the file; else coadapt.yaml in the state directory, if there is one. given:
    of the command line, None where it said nothing. options: `key=value` of it. Raises
    InputError that names the option, or the file and its key.
    """
    path = config or state_dir.path / SETTINGS_FILE
    data = _read(path) if config is not None or path.exists() else {}
    _check_keys(data, path.name)
    in_file = data.pop(OPTIONS, None) or {}
    if not isinstance(in_file, dict):
        raise InputError(
            f"{path.name}.{OPTIONS}",
            in_file,
            "names and values, as in `coadapt executors`",
        )
    given_values = {name: value for name, value in given.items() if value is not None}
    of_file = _of_file(data, path.name)
    settings = from_json(UpSettings, {**data, **given_values}, path.name)
    if settings.executor != of_file.executor:
        in_file = {}  # they are the other one's
    _check(
        settings,
        lambda name: (
            f"--{name.replace('_', '-')}"
            if name in given_values or name not in data
            else f"{path.name}.{name}"
        ),
    )
    return settings, {**in_file, **dict(_pair(text) for text in options)}


def _check_keys(data: Mapping[str, Any], name: str) -> None:
    keys = [*(each.name for each in fields(UpSettings)), OPTIONS]
    for key in data:
        if key not in keys:
            allowed = f"only the keys {', '.join(keys)}{suggestion(key, keys)}"
            raise InputError(f"{name}.{key}", data[key], allowed)


def _of_file(data: Mapping[str, Any], name: str) -> UpSettings:
    try:
        return from_json(UpSettings, data, name)
    except InputError as error:
        if not error.field.startswith("prices."):
            raise
        field = f"{name}.{error.field}"
        raise InputError(field, error.value, error.allowed) from None


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            "--config", str(path), f"a readable YAML file ({reason_of(error)})"
        ) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(
            "--config", str(path), "a YAML file of settings, each a line `name: value`"
        )
    return {str(key): value for key, value in data.items()}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InputError(
            "--executor-option", text, "name=value; `coadapt executors` lists the names"
        )
    return name.strip(), value.strip()


def _check(settings: UpSettings, named: Callable[[str], str]) -> None:
    for name, least in (
        ("round", 1.0),
        ("reaction", 0.0),
        ("settle", 0.0),
        ("grace", 0.0),
        ("sizing", 1.0),
    ):
        seconds = getattr(settings, name)
        if not least <= seconds <= SECONDS_MAX:
            raise InputError(
                named(name), seconds, f"{least:g}..{SECONDS_MAX:g} seconds"
            )
    if not 0.0 <= settings.keep_days <= KEEP_DAYS_MAX:
        raise InputError(
            named("keep_days"), settings.keep_days, f"0..{KEEP_DAYS_MAX:g} days"
        )
    if not 0 <= settings.logs_mib <= LOGS_MIB_MAX:
        raise InputError(named("logs_mib"), settings.logs_mib, f"0..{LOGS_MIB_MAX} MiB")
    if settings.port is not None and not 0 <= settings.port <= PORT_MAX:
        raise InputError(named("port"), settings.port, f"0..{PORT_MAX}")
    if settings.sizer is not None and not settings.offers:
        raise InputError(named("sizer"), settings.sizer, "only together with offers")
    host = settings.host
    loopback = host in ("localhost", "::1") or host.startswith("127.")
    if not loopback and not settings.expose:
        # A holder of the token runs commands as this user, and the token would cross
        # the network in clear.
        raise InputError(
            named("host"),
            host,
            "a loopback address such as 127.0.0.1, or --expose beside it",
        )
