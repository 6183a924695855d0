"""A digest of the code that a run is made by: with an edited policy, or another
simulator, a result is another.
"""

# Of ours: every file of the floors that a run goes through. Of a policy that is not
# ours: the file of its class, and what that imports, directly or not, from files of its
# own: from the same package, or from anywhere outside of Python's library and of what
# is installed.

import ast
import hashlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import coadapt
from coadapt.policies import policy_module

# What lies in coadapt and decides what a run gives; below `sim` not all of it.
_FOLDERS = ("model", "goodput", "core", "policies", "runtime", "sim")
_NO_PART_OF_A_RUN = ("sim/comparison", "sim/report", "sim/faults")


def code_digest(policy: str) -> str:
    """Return a digest of the version and source of Coadapt, and of `policy` where it
    comes from elsewhere.

    Raises InputError for an unknown policy.
    """
    module = policy_module(policy)
    found = hashlib.sha256(_own_digest().encode())
    if module.partition(".")[0] != coadapt.__name__:
        for name, path in sorted(_files_of(module).items()):
            found.update(
                f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
            )
    return found.hexdigest()


@cache
def _own_digest() -> str:
    root = Path(coadapt.__file__).parent
    found = hashlib.sha256(coadapt.__version__.encode())
    for folder in _FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            if not place.startswith(_NO_PART_OF_A_RUN):
                found.update(f"{place}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _files_of(module: str) -> dict[str, Path]:
    """Return the source files of `module` and of all that it imports from files of the
    user's own, by name.
    """
    package = module.partition(".")[0]
    found: dict[str, Path] = {}
    due = [module]
    while due:
        name = due.pop()
        path = _source(name)
        if name in found or path is None:
            continue
        if name.partition(".")[0] != package and _is_installed(path):
            continue
        found[name] = path
        due += _imported(name, path)
    return found


def _source(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    place = getattr(loaded, "__file__", None)
    if place is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):
            return None
        place = None if spec is None else spec.origin
    path = None if place is None else Path(place)
    return (
        path if path is not None and path.suffix == ".py" and path.is_file() else None
    )


@cache
def _installed_below() -> tuple[Path, ...]:
    paths = {*site.getsitepackages(), site.getusersitepackages()}
    paths |= {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")}
    paths.add(str(Path(coadapt.__file__).parent))
    return tuple(Path(path).resolve() for path in paths)


def _is_installed(path: Path) -> bool:
    return any(path.resolve().is_relative_to(each) for each in _installed_below())


def _imported(module: str, path: Path) -> Iterator[str]:
    """Yield the names of the modules that the file imports, wherever in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    is_package = path.name == "__init__.py"
    parents = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            for alias in node.names:
                yield f"{base}.{alias.name}" if base else alias.name
