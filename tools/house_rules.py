"""The house rules that a machine can check, as pure functions from a module's source to
what breaks them.

`python -m tools.house_rules` lists them; tests/test_tidy.py keeps the list empty and
each rule sharp.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "coadapt"

MAX_POSITIONAL = 5  # besides self; then a config dataclass
MAX_NODES = 450  # of a function's body; h11's largest has 318
# Functions that are still larger, with what they have. Split one, and its line goes.
LARGE_FUNCTIONS = {
    "cli/demo/numpy_job.py:train": 582,
    "goodput/fit_kernel.py:_solve_free": 480,
    "goodput/fit_kernel.py:evaluate": 705,
    "policies/checks/sample_views.py:_random_job": 460,
    "policies/pollux/local_search.py:_move_pair": 500,
    "policies/predictors/progress_beta.py:_train": 480,
    "policies/solvers/fluid_market.py:_divide": 484,
    "policies/solvers/fluid_pool.py:_play": 493,
    "policies/solvers/knapsack.py:_give_out": 558,
    "train/check/__main__.py:outcome": 560,
    "train/rescale/in_place.py:_rescale": 545,
}
MAX_DOCSTRING_LINES = 8  # of a module
MIN_COPY_LINES = 8  # shorter functions may look alike by chance

PURE_FLOORS = ("model/", "goodput/", "core/", "policies/")
IMPURE_MODULES = frozenset({
    "time", "datetime", "random", "secrets", "uuid",
    "os", "pathlib", "shutil", "tempfile", "signal",
    "asyncio", "threading", "multiprocessing", "concurrent", "subprocess",
    "socket", "http", "urllib", "sqlite3", "logging",
})  # fmt: skip
VAGUE_NAMES = frozenset(
    {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
)
# Executors pass the environment on to the replicas that they start.
ENVIRONMENT_READERS = ("cli/", "train/env.py", "executors/")
VALUE_MODULES = ("model/", "core/events.py", "core/commands.py")
# A key of hot dictionaries, built by the ten thousand per simulation and read as a
# plain tuple: positional.
POSITIONAL_VALUES = frozenset({"Placement"})
SEEDED = frozenset(
    {"default_rng", "Generator", "SeedSequence", "PCG64", "BitGenerator"}
)
MUTATORS = frozenset({
    "append", "add", "extend", "insert", "pop", "popitem", "remove", "discard", "clear", "update",
    "setdefault", "write", "send",
})  # fmt: skip
SUPPRESSES = re.compile(r"noqa|type:\s*ignore")
REASONED = re.compile(
    r"(noqa:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|type:\s*ignore\[[^\]]+\])\W+\w"
)
VOCABULARY = ROOT / "docs" / "vocabulary.md"
# Where a word of the table's last column means another thing than the one that it must
# not name. Path or beginning of one -> words; each with its reason.
OTHER_MEANINGS: dict[str, dict[str, str]] = {
    "cli/": {
        "app": "Typer's name for a program of verbs",
        "host": "an address to listen on, and what hosts the core",
    },
    "executors/kubernetes/": {"account": "Kubernetes' name for whom a pod speaks as"},
    "service/": {"app": "FastAPI's name for a web application"},
    "service/job_yaml.py": {"fraction": "of a number: what follows its point"},
    "model/bounds.py": {"fraction": "of a number: what follows its point"},
    "model/job.py": {"schedule": "of batches, declared in advance"},
    "model/schedule.py": {"schedule": "of batches, declared in advance"},
    "service/jobfile.py": {"schedule": "of batches, declared in advance"},
    "service/limits.py": {"schedule": "of batches, declared in advance"},
    "sim/agent.py": {"schedule": "of batches, declared in advance"},
    "train/batch/history.py": {"schedule": "of batches, declared in advance"},
    "train/step_loop.py": {"schedule": "of batches, declared in advance"},
    "executors/": {"host": "what hosts the core, as an executor sees it"},
    "executors/slurm/": {"account": "Slurm's word for who is billed"},
    "sim/faults/": {"host": "what hosts the core, as faults see it"},
    "sim/": {
        "assignment": (
            "what an agent was given, and how its world sees it: more than an "
            "allocation"
        ),
        "speed": (
            "a factor on measured step times, 1 without neighbours: no samples per "
            "second"
        ),
    },
    "core/reasons.py": {
        "restart": "of an executor that cannot rescale in place: it does start again"
    },
    "policies/pollux/local_search.py": {
        "account": "the verb: to book a move in the costs"
    },
    "train/noise/": {"interval": "of confidence"},
    "train/run.py": {"interval": "of confidence"},
    "train/checkpoint/writer.py": {"host": "host memory, as opposed to a device's"},
    "train/rescale/": {"host": "of an address: host and port"},
    "train/loading/loader.py": {
        "worker": "`num_workers`, as scripts ask torch's DataLoader for it"
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A source file; `path` is relative to the package, with forward slashes."""

    path: str
    source: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, source: str) -> "Module":
        return cls(path=path, source=source, tree=ast.parse(source))


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    rule: str
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


Found = Iterator[tuple[int, str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(module: Module) -> Found:
    """At most five by position; ruff's PLR0913 limits their number in all.

    Flags of a command (Annotated, in cli) do not count, nor options of an executor:
    both are set by name, one by one, by users.
    Compiled kernels are exempt: numba passes arrays and scalars, not config objects.
    """
    for function in _functions(module.tree):
        names = [
            ast.unparse(decorator).split("(")[0]
            for decorator in function.decorator_list
        ]
        if any(name.endswith(("jit", "compiled", "_part", "_lean")) for name in names):
            continue
        if function.returns is not None and ast.unparse(function.returns) == "Connect":
            continue
        arguments = function.args
        positional = [
            a
            for a in arguments.posonlyargs + arguments.args
            if a.arg not in ("self", "cls")
        ]
        in_cli = module.path.startswith("cli/")
        counted = [a for a in positional if not (in_cli and _is_flag(a))]
        if len(counted) > MAX_POSITIONAL:
            yield (
                function.lineno,
                (
                    f"{function.name} takes {len(counted)} parameters by position, allowed "
                    f"{MAX_POSITIONAL}: make the others keyword-only, or one dataclass"
                ),
            )


def function_nodes(module: Module) -> Found:
    """A function's body has at most 450 syntax nodes, which no formatting can hide."""
    for function in _functions(module.tree):
        allowed = LARGE_FUNCTIONS.get(f"{module.path}:{function.name}", MAX_NODES)
        num_nodes = body_nodes(function)
        if num_nodes > allowed:
            yield (
                function.lineno,
                (
                    f"{function.name} has {num_nodes} syntax nodes, allowed {allowed}: "
                    f"split it into functions that are named for what its parts do"
                ),
            )


def body_nodes(function: Function) -> int:
    """Return the syntax nodes of a function's body: its signature does not count."""
    return sum(1 for step in function.body for _ in ast.walk(step))


def nested_conditionals(module: Module) -> Found:
    """`a if x else b if y else c` is an if with an elif."""
    for node in _walk(module.tree):
        if isinstance(node, ast.IfExp) and any(
            isinstance(part, ast.IfExp) for part in _walk(node) if part is not node
        ):
            yield (
                node.lineno,
                (
                    "a conditional expression in another: write an if statement, or name "
                    "the inner value"
                ),
            )


def module_docstring(module: Module) -> Found:
    """One to five lines. Comment lines below it may explain the module at any
    length.
    """
    text = ast.get_docstring(module.tree)
    if module.source.strip() and not text:
        yield 1, "the module does not say what lives here"
    elif text and len(text.splitlines()) > MAX_DOCSTRING_LINES:
        yield (
            1,
            (
                f"the module's docstring has {len(text.splitlines())} lines, allowed "
                f"{MAX_DOCSTRING_LINES}"
            ),
        )


def file_name(module: Module) -> Found:
    parts = set(module.path.removesuffix(".py").split("/"))
    for part in sorted(parts & VAGUE_NAMES):
        yield 1, f"{part!r} does not name one thing"


def pure_floors(module: Module) -> Found:
    if module.path.startswith(PURE_FLOORS):
        for line, name in _imports(module.tree):
            if name.split(".")[0] in IMPURE_MODULES:
                yield line, f"a pure floor imports {name}"


def environment(module: Module) -> Found:
    if not module.path.startswith(ENVIRONMENT_READERS):
        for node in _walk(module.tree):
            if isinstance(node, ast.Attribute | ast.Name):
                name = node.attr if isinstance(node, ast.Attribute) else node.id
                if name in ("environ", "getenv", "putenv"):
                    yield (
                        node.lineno,
                        (
                            f"{name}: only {', '.join(ENVIRONMENT_READERS)} touch the "
                            f"environment"
                        ),
                    )


def seeded_randomness(module: Module) -> Found:
    for node in _walk(module.tree):
        if isinstance(node, ast.Attribute) and _dotted(node.value) in (
            "np.random",
            "numpy.random",
        ):
            if node.attr not in SEEDED:
                yield (
                    node.lineno,
                    f"np.random.{node.attr} draws from the global generator",
                )
        elif (
            isinstance(node, ast.Call)
            and _dotted(node.func).endswith("default_rng")
            and not (node.args or node.keywords)
        ):
            yield node.lineno, "default_rng() without a seed"


def swallowed_errors(module: Module) -> Found:
    for node in _walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or _dotted(node.type) in (
                "Exception",
                "BaseException",
            )
            silent = all(
                isinstance(step, ast.Pass | ast.Continue) for step in node.body
            )
            if node.type is None:
                yield node.lineno, "bare except"
            elif broad and silent:
                yield node.lineno, "an error is swallowed"


def one_assignment(module: Module) -> Found:
    """`a, b = x, y` is two statements, unless a value reads a target (a swap)."""
    for node in _walk(module.tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
            continue
        target = node.targets[-1]
        if not isinstance(target, ast.Tuple | ast.List):
            continue
        parts = [*target.elts, *node.value.elts]
        if any(isinstance(part, ast.Starred) for part in parts):
            continue
        stored = {ast.unparse(part) for part in target.elts}
        read = {
            ast.unparse(part)
            for value in node.value.elts
            for part in ast.walk(value)
            if isinstance(part, ast.expr)
        }
        if not stored & read:
            yield node.lineno, "several assignments in one: write one statement each"


def assert_effects(module: Module) -> Found:
    for node in _walk(module.tree):
        if isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                called = (
                    isinstance(part, ast.Call)
                    and isinstance(part.func, ast.Attribute)
                    and part.func.attr
                )
                if (
                    isinstance(part, ast.NamedExpr | ast.Await | ast.Yield)
                    or called in MUTATORS
                ):
                    yield (
                        node.lineno,
                        "an assert that does something is lost under python -O",
                    )
                    break


def policy_blindness(module: Module) -> Found:
    """Yield code that asks which policy it has, by type or by name."""
    for node in _walk(module.tree):
        if (
            isinstance(node, ast.Call)
            and _dotted(node.func) == "isinstance"
            and len(node.args) == 2
        ):
            subject, kind = (ast.unparse(argument) for argument in node.args)
            if kind.startswith("Supports"):
                continue  # an optional hook, not a class of policies
            if re.search(r"\bpolicy\b", subject) or re.search(r"Policy\b", kind):
                yield node.lineno, f"isinstance({subject}, {kind})"
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            texts = [
                s
                for s in sides
                if isinstance(s, ast.Constant) and isinstance(s.value, str)
            ]
            if texts and any(
                _dotted(s).split(".")[-1] in ("policy", "policy_name") for s in sides
            ):
                yield node.lineno, f"a test of a policy's name: {ast.unparse(node)}"


def one_code_path(module: Module) -> Found:
    if module.path.startswith((*PURE_FLOORS, "runtime/")):
        for line, name in _own_identifiers(module.tree):
            if re.search(r"simulat|is_live|dry_run", name, re.IGNORECASE):
                yield line, f"{name}: differences between worlds enter through a port"


def vocabulary(module: Module) -> Found:
    """Names go by docs/vocabulary.md, except where `OTHER_MEANINGS` says that a word
    names another thing.
    """
    allowed = {
        word
        for place, words in OTHER_MEANINGS.items()
        if module.path.startswith(place)
        for word in words
    }
    instead = unwanted_words()
    unwanted = re.compile(rf"(?<![^_])({'|'.join(instead)})s?(?![^_])")
    for line, name in _own_identifiers(module.tree):
        for word in unwanted.findall(_snake(name)):
            if word not in allowed:
                yield line, f"{name}: say {instead[word]}, not {word}"


def frozen_values(module: Module) -> Found:
    if module.path.startswith(VALUE_MODULES):
        for node in _walk(module.tree):
            if (
                isinstance(node, ast.ClassDef)
                and (given := _dataclass_keywords(node)) is not None
            ):
                wanted = {"frozen", "slots"} | (
                    {"kw_only"} - {"kw_only" if node.name in POSITIONAL_VALUES else ""}
                )
                if wanted - given:
                    yield (
                        node.lineno,
                        (
                            f"dataclass {node.name} lacks "
                            f"{', '.join(sorted(wanted - given))}"
                        ),
                    )


def public_any(module: Module) -> Found:
    private = {
        id(function)
        for node in _walk(module.tree)
        if isinstance(node, ast.ClassDef) and node.name.startswith("_")
        for function in _functions(node)
    }
    for function in _functions(module.tree):
        if function.name.startswith("_") or id(function) in private:
            continue
        arguments = function.args
        annotations = [
            a.annotation
            for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs
        ]
        for annotation in [*annotations, function.returns]:
            if annotation is not None and any(
                _dotted(part) in ("Any", "typing.Any") for part in ast.walk(annotation)
            ):
                yield function.lineno, f"{function.name}: Any in a public signature"
                break


def printing(module: Module) -> Found:
    for node in _walk(module.tree):
        if isinstance(node, ast.Call):
            called = _dotted(node.func)
            if called == "print" and not module.path.startswith("cli/"):
                yield node.lineno, "print outside cli"
            if called.endswith("basicConfig") and not module.path.startswith("cli/"):
                yield node.lineno, "a library never configures logging"


def suppressions(module: Module) -> Found:
    """`# noqa: BLE001  # why` and `# type: ignore[misc]  # why`: the rule, then the
    reason.
    """
    if not SUPPRESSES.search(module.source):
        return
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        suppresses = token.type == tokenize.COMMENT and SUPPRESSES.search(token.string)
        if suppresses and not REASONED.search(token.string):
            yield (
                token.start[0],
                f"{token.string.strip()}: name the rule and, after it, the reason",
            )


@cache
def unwanted_words() -> dict[str, str]:
    """Return what docs/vocabulary.md says not to say -> what to say, both as they stand
    in names.
    """
    page = VOCABULARY.read_text(encoding="utf-8")
    return words_of_table(page.partition("## All words")[2])


def words_of_table(page: str) -> dict[str, str]:
    """Return the last column of the first table of `page` -> its first one, word by
    word.

    What stands in brackets is an explanation. A word that is another row's own is left
    alone.
    """
    rows = []
    for line in page.partition("|---")[2].splitlines()[1:]:
        if not line.startswith("|"):
            break
        rows.append(
            [
                re.sub(r"\(.*?\)|\*.*?\*|`", "", cell)
                for cell in line.strip("|").split("|")
            ]
        )
    right = {_as_name(word) for row in rows for word in row[0].split(",")}
    return {
        _as_name(word): _as_name(row[0].split(",")[0])
        for row in rows
        for word in row[-1].split(",")
        if word.strip() and _as_name(word) not in right
    }


def _as_name(word: str) -> str:
    return re.sub(r"[ -]+", "_", word.strip().lower())


RULES: dict[str, Callable[[Module], Found]] = {
    rule.__name__.replace("_", "-"): rule
    for rule in (
        parameters,
        function_nodes,
        nested_conditionals,
        module_docstring,
        file_name,
        pure_floors,
        environment,
        seeded_randomness,
        swallowed_errors,
        one_assignment,
        assert_effects,
        policy_blindness,
        one_code_path,
        vocabulary,
        frozen_values,
        public_any,
        printing,
        suppressions,
    )
}


def check(module: Module) -> list[Violation]:
    """Return what `module` breaks, rule by rule."""
    return [
        Violation(rule=name, path=module.path, line=line, text=text)
        for name, rule in RULES.items()
        for line, text in rule(module)
    ]


def copies(modules: list[Module]) -> list[Violation]:
    """Return functions whose bodies stand, word by word, in two places."""
    seen: dict[str, str] = {}
    found = []
    for module in modules:
        for function in _functions(module.tree):
            body = "\n".join(
                ast.unparse(step) for step in function.body if not _is_docstring(step)
            )
            if body.count("\n") + 1 < MIN_COPY_LINES:
                continue
            place = f"{module.path}: {function.name}"
            if (first := seen.setdefault(body, place)) is not place:
                text = f"{function.name} is a copy of {first}"
                found.append(
                    Violation(
                        rule="copies", path=module.path, line=function.lineno, text=text
                    )
                )
    return found


def package_modules() -> list[Module]:
    """Return all modules of src/coadapt, in path order."""
    return [
        Module.parse(
            path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        )
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


@lru_cache(maxsize=64)  # a score of rules look through the same tree
def _walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in _walk(tree) if isinstance(node, Function))


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module


def _own_identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that this file coins: definitions, parameters, assigned names; not what it
    calls.
    """
    for node in _walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def _dataclass_keywords(node: ast.ClassDef) -> set[str] | None:
    """Return the switches set on a dataclass decorator, None where there is none."""
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if _dotted(call).split(".")[-1] == "dataclass":
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            return {
                k.arg
                for k in keywords
                if k.arg and isinstance(k.value, ast.Constant) and k.value.value is True
            }
    return None


def _is_flag(argument: ast.arg) -> bool:
    """Whether it is written `Annotated[...]`, or as a name ...Option: a flag that
    several commands share.
    """
    annotation = argument.annotation
    if isinstance(annotation, ast.Subscript):
        return _dotted(annotation.value) == "Annotated"
    return isinstance(annotation, ast.Name) and annotation.id.endswith("Option")


def _is_docstring(step: ast.stmt) -> bool:
    return (
        isinstance(step, ast.Expr)
        and isinstance(step.value, ast.Constant)
        and isinstance(step.value.value, str)
    )


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""


@cache
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def main() -> int:
    modules = package_modules()
    violations = [
        violation for module in modules for violation in check(module)
    ] + copies(modules)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
