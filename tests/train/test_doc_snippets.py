"""The Python snippets of the training pages run, each in its own process and folder.

Most snippets are a part of a script. A test adds what comes before it (imports, a small
model and data set) and lowers numbers that would take long.
"""

import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent

import pytest

from tests.test_docs import snippets
from tests.train.forked_script import ForkedScript

pytestmark = pytest.mark.train

LIMIT_S = 120.0
# The first has its own test below, the second needs a scheduler: it runs in
# tests/cli/test_client.py.
EARLY_STOPPING = "EarlyStoppingCallback(2)"
RUN_ELSEWHERE = (EARLY_STOPPING, "from coadapt import Client")
SCRIPT = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Subset, TensorDataset, WeightedRandomSampler
import coadapt.train as ct

{init}
torch.manual_seed(0)
n = 16
x_all = torch.randn(n, 4)
y_all = torch.arange(n) % 2
weights = torch.ones(n)
dataset = train_set = labelled = TensorDataset(x_all, y_all)
loss_fn = nn.CrossEntropyLoss()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
PREPARED = "model, optimizer = run.prepare(model, optimizer)\n"
LOADER = "loader = run.loader(dataset, batch_size=8)\n"
TRAIN = """\
for x, y in loader:
    optimizer.zero_grad()
    loss_fn(model(x), y).backward()
    optimizer.step()
"""
LOOP = "for epoch in run.epochs(1):\n" + "".join(
    f"    {line}\n" for line in TRAIN.splitlines()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a snippet needs. before, after: code. inside: lines of the loop's body.

    changes: texts of the snippet to replace, so that it is small.
    """

    before: str = PREPARED
    after: str = ""
    inside: bool = False
    init: str = "run = ct.init()"
    changes: dict[str, str] = field(default_factory=dict)


TWO_TOWERS = """\
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(4, 3)
        self.text = nn.Linear(1, 3)

    def forward(self, x, y):
        return self.image(x), self.text(y[:, None].float()), 1.0


model = Towers()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
RECURRENT = """\
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(1, 2)

    def init_hidden(self, n):
        return torch.zeros(1, n, 2)

    def forward(self, x, hidden):
        return self.rnn(x[..., None], hidden)


model = Recurrent()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
EPISODES = """\
policy = model


def episode(policy, generator):
    return policy(torch.randn(1, 4, generator=generator)).square().mean()


"""
GALLERY = Path(__file__).parents[2] / "examples" / "gallery" / "hugging_face.py"
STOPPED_EARLY = """\
assert trainer.state.epoch == 3, trainer.state.epoch
assert trainer.state.best_model_checkpoint
"""
# By a text that only this snippet has.
SNIPPETS = {
    'contract="self"': Surroundings(
        before="",
        after=PREPARED + LOOP,
        init="",
        changes={"32": "4", "128": "16"},
    ),
    "num_workers=4": Surroundings(after=LOOP, changes={"128": "8", "=4": "=0"}),
    "WeightedRandomSampler(": Surroundings(after=LOOP, changes={"128": "8"}),
    "loader.dataset.indices": Surroundings(changes={"128": "8"}),
    "run.validation_loader(": Surroundings(
        before=PREPARED + LOADER,
        changes={"    ...  # train\n": indent(TRAIN, "    ")},
    ),
    "run.further_loader(": Surroundings(
        before=PREPARED + "images = TensorDataset(x_all)\n",
        changes={"64": "2", "448": "14"},
    ),
    "run.steps(10_000": Surroundings(
        before=PREPARED + EPISODES, changes={"10_000": "3"}
    ),
    "average.update_parameters": Surroundings(
        before="average = torch.optim.swa_utils.AveragedModel(model)\n"
        + PREPARED
        + LOADER,
        inside=True,
    ),
    "run.gather_start": Surroundings(
        before=TWO_TOWERS + PREPARED + LOADER, inside=True
    ),
    "run.find_max_atomic(": Surroundings(
        before="model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "dataset = TensorDataset(torch.randn(n, 3, 8, 8), y_all)\n" + PREPARED,
        after=LOOP,
        changes={"224": "8", "1024": "16"},
    ),
    'name="generator"': Surroundings(
        before="generator, critic = nn.Linear(4, 2), nn.Linear(4, 2)\n"
        "g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)\n"
        "c_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)\n"
    ),
    "iter_num=0": Surroundings(
        before=PREPARED + LOADER,
        after="assert state.iter_num == 20\n",
    ),
    "hidden.set(new)": Surroundings(before=RECURRENT + PREPARED + LOADER),
    "params = ct.params()": Surroundings(before="accuracy, epoch = 0.5, 1\n"),
    "int(sys.argv[1])": Surroundings(before="", init="", changes={"8_000": "256"}),
}


def training_snippets() -> list[tuple[str, str]]:
    return [
        (place, text)
        for place, text in snippets("python")
        if ("torch" in text or "train" in text)
        and not any(known in text for known in RUN_ELSEWHERE)
        and "traces" not in place
    ]


def script_of(text: str) -> str:
    """Return the whole script that has the snippet `text`."""
    found = [SNIPPETS[known] for known in SNIPPETS if known in text]
    assert len(found) == 1, f"SNIPPETS needs one entry for this snippet:\n{text}"
    around = found[0]
    for old, new in around.changes.items():
        assert old in text
        text = text.replace(old, new)
    head = SCRIPT.format(init=around.init)
    if not around.inside:
        return f"{head}{around.before}\n{text}\n{around.after}"
    body = text
    if ".backward()" not in text:
        body = f"{TRAIN.partition(chr(10))[2]}"
        body = "\n".join(line.removeprefix("    ") for line in body.splitlines())
        body = f"{body}\n{text}"
        if "loss = " in text:
            body = f"optimizer.zero_grad()\n{text}\nloss.backward()\noptimizer.step()"
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    loop = f"for epoch in run.epochs(1):\n    for x, y in loader:\n{indented}\n"
    return f"{head}{around.before}\n{loop}"


@pytest.mark.parametrize(
    ("place", "text"),
    [pytest.param(*each, id=each[0]) for each in training_snippets()],
)
def test_a_snippet_runs(place: str, text: str, tmp_path: Path) -> None:
    runs(script_of(text), place, tmp_path)


def test_the_trainer_stops_early_as_the_page_has_it(tmp_path: Path) -> None:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    [(place, text)] = [each for each in snippets("python") if EARLY_STOPPING in each[1]]
    head, found, _ = GALLERY.read_text().partition("trainer = Trainer(")
    assert found
    # At a rate of 0 no epoch is better than the first: the Trainer stops after three.
    assert '"learning_rate": 1e-3' in head
    head = head.replace('"learning_rate": 1e-3', '"learning_rate": 0.0')
    script = f"{head}train_set = eval_set = Counting()\n{text}\n{STOPPED_EARLY}"
    runs(script, place, tmp_path)


def runs(text: str, place: str, tmp_path: Path) -> None:
    """Run a script in a process of its own; it must end with 0."""
    script = tmp_path / "snippet.py"
    script.write_text(text)
    log = tmp_path / "log"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("COADAPT_")
    }
    with log.open("wb") as output:
        process = ForkedScript(
            [str(script), "1"],
            {**environment, "OMP_NUM_THREADS": "1"},
            output,
            cwd=str(tmp_path),
        )
    code = process.wait(LIMIT_S)
    assert code == 0, f"{place}:\n{log.read_text()}\n{script.read_text()}"


def test_every_entry_is_used() -> None:
    texts = [text for _, text in training_snippets()]
    for known in SNIPPETS:
        assert sum(known in text for text in texts) == 1, known
