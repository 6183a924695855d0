"""Mutants: one small change of the code each, and whether the tests notice.

python -m tools.mutants --count 40 --seed 1               with the tests of `make quick`
... --marks "" --survivors 3,17                           those that survived, with the
whole suite ... --show                                                what they are
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.house_rules import PACKAGE, ROOT, Module, package_modules
from tools.test_parts import QUICK

TIMEOUT_S = 900

_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One changed line of one module; `source` is the whole module after it."""

    path: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def draw(count: int, seed: int, rooms: tuple[str, ...]) -> list[Mutant]:
    """Return `count` mutants, the places drawn evenly over all of `rooms`."""
    sites = [
        (module, index)
        for module in package_modules()
        if module.path.startswith(rooms)
        for index in range(sum(1 for _ in _sites(module.tree)))
    ]
    drawn = random.Random(seed).sample(sites, count)
    return [_mutant(module, index) for module, index in drawn]


def caught(mutant: Mutant, marks: str) -> bool:
    """Return whether a test with these marks fails when the package is the mutant."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder) / "coadapt")
        (Path(folder) / "coadapt" / mutant.path).write_text(
            mutant.source, encoding="utf-8"
        )
        near = ROOT / "tests" / mutant.path.split("/")[0]
        first = [str(near)] if near.is_dir() else []
        for places in (first, [str(ROOT / "tests")]):
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                marks,
            ]
            deselect = [
                f"--ignore={ROOT / 'tests' / name}"
                for name in ("test_tidy.py", "test_docs.py")
            ]
            environment = {**os.environ, "PYTHONPATH": folder}
            if not places:
                continue
            try:
                done = subprocess.run(
                    [*command, *places, *deselect],
                    cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return True
            if done.returncode not in (0, 5):
                return True
    return False


def _sites(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        compared = (
            isinstance(node, ast.Compare)
            and len(node.ops) == 1
            and type(node.ops[0]) in _SWAPPED
        )
        computed = isinstance(node, ast.BinOp) and type(node.op) in _OTHER
        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        if compared or computed or negated or isinstance(node, ast.BoolOp):
            yield node


def _mutant(module: Module, index: int) -> Mutant:
    tree = copy.deepcopy(module.tree)
    node = list(_sites(tree))[index]
    before = ast.unparse(node)
    match node:
        case ast.Compare():
            node.ops = [_SWAPPED[type(node.ops[0])]()]
        case ast.BinOp():
            node.op = _OTHER[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.op = ast.UAdd()
            node.operand = ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
        case _:
            raise AssertionError(f"no mutant of {before}")
    line = getattr(node, "lineno", 0)
    return Mutant(
        path=module.path,
        line=line,
        before=before,
        after=ast.unparse(node),
        source=ast.unparse(ast.fix_missing_locations(tree)),
    )


def main(arguments: list[str]) -> int:
    """Try the mutants one after the other; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rooms",
        default="model,goodput,core,policies,runtime,sim,service,executors,cli",
    )
    parser.add_argument("--marks", default=QUICK)
    parser.add_argument("--survivors", default="", help="only these, by their numbers")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args(arguments)
    only = [int(number) for number in given.survivors.split(",") if number]
    num_caught = 0
    num_tried = 0
    for number, mutant in enumerate(
        draw(given.count, given.seed, tuple(given.rooms.split(",")))
    ):
        if only and number not in only:
            continue
        if given.show:
            sys.stdout.write(f"{number:3} {mutant}\n")
            continue
        num_tried += 1
        found = caught(mutant, given.marks)
        num_caught += found
        sys.stdout.write(f"{number:3} {'caught  ' if found else 'SURVIVED'} {mutant}\n")
        sys.stdout.flush()
    if not given.show:
        sys.stdout.write(f"{num_caught} of {num_tried} caught\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
