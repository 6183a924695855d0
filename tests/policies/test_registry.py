import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.model import InputError
from coadapt.policies import POLICIES, create_policy, policy_names, policy_options
from coadapt.policies.fifo import Fifo
from coadapt.policies.tiresias import Tiresias


def test_a_policy_is_made_by_name_with_its_options() -> None:
    policy = create_policy("tiresias", promote_knob=8.0)
    assert isinstance(policy, Tiresias)
    assert policy_options("tiresias") == {
        "thresholds_gpu_s": (57_600.0,),
        "promote_knob": 0.0,
        "form": "las",
        "history_gpu_s": (),
        "pack_limit": None,
    }


def test_a_policy_is_made_by_reference() -> None:
    assert isinstance(create_policy("coadapt.policies.fifo:Fifo", backfill=True), Fifo)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "polux",
            rf"policy: got 'polux'; allowed: {', '.join(POLICIES)}.*; did you mean pollux\?",
        ),
        ("", "policy: got ''; allowed: fifo, "),
        (":Fifo", "or module:Class"),
        ("coadapt.policies.fifo:", "or module:Class"),
        ("no_such_module:Policy", "No module named 'no_such_module'"),
        ("coadapt.policies.fifo:Lifo", "has no attribute 'Lifo'"),
        ("coadapt.model:JobSpec", r"a class with a method allocate\(view\) -> Plan"),
    ],
)
def test_an_unknown_policy_is_one_line_that_says_what_is_allowed(
    name: str, text: str
) -> None:
    with pytest.raises(InputError, match=text) as caught:
        create_policy(name)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        create_policy("fifo", backfil=True)
    assert (
        str(caught.value)
        == "policy fifo, option backfil: got True; allowed: backfill=False; did you "
        "mean backfill?"
    )
    with pytest.raises(InputError, match="allowed: no options"):
        create_policy("afs", seed=1)


def test_a_bad_value_of_an_option_is_bad_input() -> None:
    with pytest.raises(InputError, match="promote_knob must be >= 0, got -1"):
        create_policy("tiresias", promote_knob=-1)


def test_an_installed_distribution_adds_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may add a name, but not take one of ours."""
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[coadapt.policies]\ntheirs = coadapt.policies.srtf:Srtf\nfifo = "
        "coadapt.policies.srtf:Srtf\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert policy_names() == (*POLICIES, "theirs")
    assert type(create_policy("theirs")).__name__ == "Srtf"
    assert isinstance(create_policy("fifo"), Fifo)


@pytest.mark.processes
def test_listing_the_policies_loads_none_of_them() -> None:
    code = (
        "import sys, coadapt.policies as p; p.policy_names(); heavy = ('numpy', "
        "'numba', 'scipy')\n"
        "print([m for m in sys.modules if m.startswith('coadapt.policies.') or m in "
        "heavy])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == (
        "['coadapt.policies.base', 'coadapt.policies.choice', "
        "'coadapt.policies.option_texts']"
    )
