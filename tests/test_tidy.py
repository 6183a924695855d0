"""The house rules that a machine can check: the package breaks none, and each rule
bites on a bad sample.
"""

import importlib
import re
import subprocess
import tomllib
from functools import cache

import pytest

from coadapt.executors import EXECUTORS, executor_options
from coadapt.policies import (
    POLICIES,
    create_policy,
    policy_card,
    policy_option_texts,
    policy_options,
)
from coadapt.sim.traces import FORMATS
from tools import house_shape, public_surface, state_diagram
from tools.house_rules import (
    OTHER_MEANINGS,
    PACKAGE,
    ROOT,
    RULES,
    Module,
    check,
    copies,
    package_modules,
    unwanted_words,
    words_of_table,
)

DOC = '"""One thing."""\n'
SIX = "a, b, c, d, e, g"
TRY = "try:\n    f()\n"
VALUE = "@dataclass(frozen=True, slots=True, kw_only=True)\n"


@cache
def modules() -> list[Module]:
    """Return the package's modules, read when the first test needs them."""
    return package_modules()


def test_the_package_keeps_the_house_rules() -> None:
    violations = [violation for module in modules() for violation in check(module)]
    violations += copies(modules())
    if violations:
        pytest.fail("\n".join(map(str, violations)), pytrace=False)


def test_no_folder_is_a_heap() -> None:
    full = {
        folder: count
        for folder, count in house_shape.files_per_folder(modules()).items()
        if count > house_shape.MAX_FILES_PER_FOLDER
    }
    assert full == {}, "give it inner walls: a folder for each idea"


def test_the_shape_is_measured_as_it_is_said() -> None:
    text = (
        'x = 1  # why\n\n\ndef f() -> None:\n    """Say.\n\n    More.\n    """\n'
        "    # why\n    g(\n        x,\n    )\n"
    )
    module = Module.parse("core/a/b.py", text)
    assert house_shape.code_lines(module) == 5
    assert house_shape.function_lines([module]) == [9]
    assert house_shape.files_per_folder(
        [module, Module.parse("core/a/__init__.py", "")]
    ) == {"core/a": 1}
    assert house_shape.p95(range(1, 101)) == 95
    assert (house_shape.p95([7]), house_shape.p95([])) == (7, 0)


# rule, path of the sample, what keeps it, what breaks it
SAMPLES: list[tuple[str, str, str, str]] = [
    ("parameters", "sim/a.py", "def f(self, a, b, c, d, e, *, g, h, i): ...", "def f(a, b, c, d, e, g): ..."),
    ("function-nodes", "sim/a.py", "def f():\n" + "    x = 1\n" * 100, "def f():\n" + "    x = 1\n" * 120),
    ("nested-conditionals", "sim/a.py", "x = a if b else c", "x = a if b else c if d else e"),
    ("parameters", "sim/a.py", f"@numba.njit(cache=True)\ndef f({SIX}): 1", f"def f({SIX}): 1"),
    ("parameters", "sim/a.py", f"@compiled\ndef f({SIX}): 1", f"@cached\ndef f({SIX}): 1"),
    (
        "parameters",
        "cli/a.py",
        "def f(a: Annotated[int, 1], b: Annotated[int, 1], c, d, e, g, h): ...",
        "def f(a, b, c, d, e, g): ...",
    ),
    ("module-docstring", "sim/a.py", DOC + "# why\n" * 40, "x = 1\n"),
    ("module-docstring", "sim/a.py", '"""1\n2\n3\n4\n5\n"""\n', "x = 1\n"),
    ("module-docstring", "sim/a.py", "", '"""1\n2\n3\n4\n5\n6\n7\n8\n9\n"""\n'),
    ("pure-floors", "core/a.py", "import math", "import time"),
    ("pure-floors", "model/a.py", "from typing import Any", "from os.path import join"),
    ("pure-floors", "policies/a.py", "import importlib.metadata", "def f():\n    import concurrent.futures"),
    ("environment", "sim/a.py", "x = environment", "import os\nx = os.environ['A']"),
    ("environment", "train/loop.py", "x = 1", "from os import getenv\nx = getenv('A')"),
    ("environment", "train/env.py", "import os\nx = os.environ['A']", ""),
    ("environment", "cli/up.py", "import os\nx = os.environ['A']", ""),
    ("seeded-randomness", "sim/a.py", "rng = np.random.default_rng(seed)", "x = np.random.rand(3)"),
    ("seeded-randomness", "sim/a.py", "x: np.random.Generator", "rng = np.random.default_rng()"),
    ("swallowed-errors", "sim/a.py", TRY + "except KeyError:\n    pass", TRY + "except Exception:\n    pass"),
    ("swallowed-errors", "sim/a.py", TRY + "except Exception as e:\n    log(e)", TRY + "except:\n    log()"),
    ("one-assignment", "sim/a.py", "a, b = b, a + b", "a, b = 1, 2"),
    ("one-assignment", "sim/a.py", "a, b = f()", "self.a, (b, c) = x, y"),
    ("assert-effects", "sim/a.py", "assert f(x) == 1", "assert queue.pop() == 1"),
    ("assert-effects", "sim/a.py", "assert x", "assert (x := f())"),
    ("policy-blindness", "sim/a.py", "isinstance(event, JobSubmitted)", "isinstance(policy, Pollux)"),
    ("policy-blindness", "sim/a.py", "x == 'pollux'", "isinstance(x, PolluxPolicy)"),
    ("policy-blindness", "sim/a.py", "policy = create('pollux')", "if policy_name == 'pollux': ..."),
    ("policy-blindness", "sim/a.py", "self.policy is None", "if self.policy == 'pollux': ..."),
    ("one-code-path", "core/a.py", "def f(config): ...", "def f(simulate): ..."),
    ("one-code-path", "runtime/a.py", "x = clock.now()", "self.is_live = True"),
    ("one-code-path", "sim/a.py", "def simulate(): ...", ""),
    ("vocabulary", "sim/a.py", "num_replicas = 1", "num_workers = 1"),
    ("vocabulary", "sim/a.py", "DataLoader(num_workers=2)", "def f(worker): ..."),
    ("vocabulary", "sim/a.py", "networkers = 1", "class WorkerPool: ..."),
    ("vocabulary", "train/loading/loader.py", "num_workers = 1", "global_batch = 1"),
    ("vocabulary", "goodput/a.py", "gain = 1", "micro_batch = 1"),
    ("frozen-values", "model/a.py", VALUE + "class A: ...", "@dataclass\nclass A: ..."),
    (
        "frozen-values",
        "core/events.py",
        "@dataclass(frozen=True, slots=True)\nclass Placement: ...",
        "@dataclass(frozen=True, slots=True)\nclass A: ...",
    ),
    ("frozen-values", "sim/a.py", "@dataclass\nclass A: ...", ""),
    ("public-any", "sim/a.py", "def f(x: object) -> int: ...", "def f(x: dict[str, Any]) -> int: ..."),
    ("public-any", "sim/a.py", "def _f(x: Any) -> int: ...", "def f() -> Any: ..."),
    (
        "public-any",
        "sim/a.py",
        "class _A:\n    def f(self, x: Any): ...",
        "class A:\n    def f(self, x: Any): ...",
    ),
    ("printing", "cli/a.py", "print(1)", ""),
    ("printing", "sim/a.py", "logger.info('x')", "print(1)"),
    ("printing", "sim/a.py", "x.pprint()", "logging.basicConfig()"),
    ("suppressions", "sim/a.py", "x = 1  # noqa: BLE001  # anything may be raised", "x = 1  # noqa"),
    ("suppressions", "sim/a.py", "x = 1  # noqa: BLE001, S110 - it may raise", "x = 1  # noqa: BLE001"),
    ("suppressions", "sim/a.py", "x = 1  # type: ignore[misc]  # frozen", "x = 1  # type: ignore[misc]"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "kept", "broken"), SAMPLES)
def test_each_rule_bites(rule: str, path: str, kept: str, broken: str) -> None:
    assert list(RULES[rule](Module.parse(path, kept))) == []
    if broken:
        assert len(list(RULES[rule](Module.parse(path, broken)))) == 1


@pytest.mark.parametrize(
    "path", ["sim/utils.py", "train/common/loss.py", "core/manager.py"]
)
def test_a_vague_file_name_is_found(path: str) -> None:
    assert len(list(RULES["file-name"](Module.parse(path, DOC)))) == 1
    assert (
        list(RULES["file-name"](Module.parse("sim/memory_manager_unit.py", DOC))) == []
    )


def test_the_vocabulary_is_that_of_the_page() -> None:
    page = (
        "| word | we do not say |\n|---|---|\n| job, spec | task, App (a program) |\n"
        "| gain *r* | |\n| x | gain |\n\n"
    )
    assert words_of_table(page + "| other | table |\n") == {"task": "job", "app": "job"}
    assert {"worker", "global_batch", "switchboard"} <= unwanted_words().keys()


def test_every_exception_is_needed() -> None:
    """A word that nobody uses needs no exception."""
    names: dict[str, str] = {}
    for module in modules():
        for place in OTHER_MEANINGS:
            if module.path.startswith(place):
                names[place] = names.get(place, "") + module.source.lower()
    for place, words in OTHER_MEANINGS.items():
        assert [word for word in words if word not in names.get(place, "")] == [], place
        assert set(words) <= unwanted_words().keys(), place


def test_every_rule_has_a_sample() -> None:
    assert {sample[0] for sample in SAMPLES} | {"file-name"} == set(RULES)


def test_a_copy_is_found() -> None:
    body = "".join(f"    x{i} = {i}\n" for i in range(8))
    one = Module.parse("sim/a.py", f"def f():\n{body}")
    two = Module.parse("sim/b.py", f"def g():\n    'Other words.'\n{body}")
    other = Module.parse("sim/c.py", f"def f():\n{body}    y = 1\n")
    assert [violation.text for violation in copies([one, two, other])] == [
        "g is a copy of sim/a.py: f"
    ]


# -- tracked text
# --------------------------------------------------------------------------------------

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:tmp|root|home|work)/")
REGISTRY = re.compile(
    r"pypi\.org|pythonhosted|download\.pytorch|registry\.npmjs|--(?:extra-)?index-url|/simple\b"
)


def tracked_text() -> list[tuple[str, str]]:
    run = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if run.returncode:
        pytest.skip("not a git checkout")
    names = [
        name for name in run.stdout.split("\0") if name and (ROOT / name).is_file()
    ]
    return [
        (name, (ROOT / name).read_text(encoding="utf-8", errors="ignore"))
        for name in names
    ]


def test_tracked_files_name_no_path_of_one_machine() -> None:
    assert MACHINE_PATH.search("cd " + "/tmp/x")
    assert not MACHINE_PATH.search("sys/tmp/x")
    found = [
        name
        for name, text in tracked_text()
        if not name.startswith("tests/") and MACHINE_PATH.search(text)
    ]
    assert found == []


def test_tracked_files_name_no_package_registry() -> None:
    assert REGISTRY.search("pip install --index-url x")
    found = [
        name
        for name, text in tracked_text()
        if name != "tests/test_tidy.py" and REGISTRY.search(text)
    ]
    assert found == []


def test_constraints_are_exact_versions_without_addresses() -> None:
    rows = [
        row
        for row in (ROOT / "constraints.txt").read_text().splitlines()
        if not row.startswith("#")
    ]
    assert [
        row
        for row in rows
        if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", row)
    ] == []


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    needed = project["dependencies"] + [
        row for extra in project["optional-dependencies"].values() for row in extra
    ]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert {distribution(row) for row in needed} - {
        distribution(row) for row in pinned
    } == {"coadapt"}


def distribution(requirement: str) -> str:
    """Return the name in `requirement`, in its normal form."""
    name = re.match(r"[A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", name[0] if name else "").lower()


# -- seams
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_has_its_row_its_page_and_its_file(name: str) -> None:
    module = POLICIES[name].split(":")[0]
    assert (PACKAGE.parent / (module.replace(".", "/") + ".py")).is_file()
    page = ROOT / "docs" / "policies" / f"{name}.md"
    assert page.is_file()
    assert page.read_text(encoding="utf-8").startswith("# ")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"[{name}](docs/policies/{name}.md)" in readme, "a row of the README's table"
    index = (ROOT / "docs" / "policies" / "index.md").read_text(encoding="utf-8")
    assert f"({name}.md)" in index, "a row of the table in docs/policies/index.md"
    assert callable(create_policy(name).allocate)
    card = policy_card(name)
    assert card.paper
    assert card.decides
    assert set(policy_option_texts(name)) == set(policy_options(name)), (
        "its docstring explains each: `name: text`"
    )


def test_every_policy_of_ours_is_registered() -> None:
    rows = {row.split(":")[0] for row in POLICIES.values()}
    written = {
        "coadapt." + module.path.removesuffix(".py").replace("/", ".")
        for module in modules()
        if module.path.startswith("policies/")
        and re.search(
            r"^    def allocate\(self, view: ClusterView\) -> Plan:\n(?!.*\n +\.\.\.)",
            module.source,
            re.M,
        )
    }
    assert written - {"coadapt.policies.base"} == rows


@pytest.mark.parametrize("name", FORMATS)
def test_a_trace_format_has_its_row_its_file_and_its_page(name: str) -> None:
    importer = importlib.import_module(FORMATS[name])
    assert callable(importer.recognises)
    assert callable(importer.load)
    page = ROOT / "docs" / "traces" / f"{name}.md"
    assert page.is_file() or f"| `{name}` |" in (ROOT / "docs" / "traces.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_executor_has_its_row_its_page_and_its_options(name: str) -> None:
    page = ROOT / "docs" / "engines" / f"{name}.md"
    assert page.read_text(encoding="utf-8").startswith("# ")
    for option in executor_options(name):
        assert f"| `{option}`" in page.read_text(encoding="utf-8"), option


def test_only_the_registry_names_an_executor() -> None:
    """Whoever adds one touches no composition root and no route; two verbs are about
    one engine by name.
    """
    homes = {row.split(":")[0] for row in EXECUTORS.values()}
    named = {
        module.path
        for module in modules()
        if not module.path.startswith("executors/")
        and any(each in module.source for each in homes)
    }
    assert named == {
        "cli/jobs/sbatch.py",
        "cli/jobs/in_allocation.py",
        "cli/cluster/elastic_jobs.py",
    }


def test_the_public_surface_is_the_golden_list() -> None:
    golden = public_surface.GOLDEN.read_text(encoding="utf-8").splitlines()
    assert public_surface.lines() == golden, (
        "if the change is meant: make golden, and say why in the commit"
    )


def test_the_state_diagram_is_drawn_from_the_table() -> None:
    page = state_diagram.PAGE.read_text(encoding="utf-8")
    assert page == state_diagram.with_diagram(page), "make golden"
    with pytest.raises(ValueError, match="lacks the marks"):
        state_diagram.with_diagram("# A page without marks\n")
