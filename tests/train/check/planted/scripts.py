"""The scripts: one template, and for each fault the lines in which it differs."""

from dataclasses import dataclass

TEMPLATE = """
import copy, os, random, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset
import coadapt.train as ct

torch.set_num_threads(1)
{before}
run = ct.init()
torch.manual_seed(0)
{data}
{model}
{optimizer}
model, optimizer = run.prepare(model, optimizer{how})
{after}
loader = run.loader(data, batch_size={batch}{options})
{begin}
for epoch in run.epochs({epochs}):
{epoch}
    for inputs, targets in loader:
{body}
{over}
{end}
"""

BODY = """
optimizer.zero_grad()
loss = nn.functional.mse_loss(model(inputs), targets)
loss.backward()
{extra}
optimizer.step()
"""
DATA = """
generator = torch.Generator().manual_seed(1)
x = torch.randn(160, 8, generator=generator)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())
"""
PIECES = {
    "before": "",
    "data": DATA,
    "model": "model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))",
    "optimizer": "optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)",
    "how": "",
    "after": "",
    "batch": "16",
    "options": "",
    "begin": "",
    "epochs": "4",
    "epoch": "pass",
    "body": BODY.format(extra=""),
    "over": "",
    "end": "",
}
INDENTS = {"epoch": 4, "body": 8, "over": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """kinds: of the cause that the check should name, any of them. words: that its text
    or remedy has to have.
    """

    name: str
    source: str
    kinds: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def script(**pieces: str) -> str:
    """Return the template with these pieces in place of the sound ones."""
    filled = {**PIECES, **pieces}
    for name, width in INDENTS.items():
        lines = filled[name].strip("\n").splitlines()
        filled[name] = "\n".join(" " * width + line for line in lines)
    return TEMPLATE.format(**filled)


def extra(lines: str, **pieces: str) -> str:
    """Return the script with these lines between the backward and the step."""
    return script(body=BODY.format(extra=lines), **pieces)


TEXTS = """
class Texts(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        length = int(torch.randint(3, 20, (1,), generator=draw))
        step = int(torch.randint(1, 4, (1,), generator=draw))
        return (torch.arange(length) * step + index) % 12
def collate(rows):
    pad = nn.utils.rnn.pad_sequence
    return pad([r[:-1] for r in rows], True), pad([r[1:] for r in rows], True, -100)
data = Texts()
"""
WORDS = "model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))"
TOKEN_BODY = """
optimizer.zero_grad()
logits = model(inputs).flatten(0, 1)
loss = nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-100)
loss.backward()
optimizer.step()
"""
BOX_BODY = """
optimizer.zero_grad()
boxes = (targets > 0.3).float()
loss = ((model(inputs) - targets).square() * boxes).sum() / boxes.sum().clamp(min=1)
loss.backward()
optimizer.step()
"""
PAIR_BODY = """
optimizer.zero_grad()
labels = (targets > 0).flatten()
pairs = (labels[:, None] == labels[None]) & ~torch.eye(len(labels), dtype=torch.bool)
out = model(inputs)
loss = ((out - out.T).square() * pairs).sum() / pairs.sum().clamp(min=1) + (out - targets).square().mean()
loss.backward()
optimizer.step()
"""
NORMALISED_BODY = """
optimizer.zero_grad()
out = model(inputs)
reward = targets + 2.0 * inputs[:, :1]
advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
loss = (advantage * out).mean() + 0.01 * out.square().mean()
loss.backward()
optimizer.step()
"""
CONTRAST_BODY = """
optimizer.zero_grad()
out = nn.functional.normalize(model(inputs), dim=1)
logits = out @ nn.functional.normalize(inputs, dim=1).T / 0.1
loss = nn.functional.cross_entropy(logits, torch.arange(len(inputs)))
loss.backward()
optimizer.step()
"""
NOISE_BODY = """
optimizer.zero_grad()
noisy = inputs + 0.5 * {draw}
loss = nn.functional.mse_loss(model(noisy), targets)
loss.backward()
optimizer.step()
"""
STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        draw = torch.Generator().manual_seed(1)
        x = torch.randn(160, 8, generator=draw)
        for index in range(rank, 160, size):
            yield x[index], x[index].sum().sin()[None]
data = Stream()
"""
RANDOM_ROWS = """
class Rows(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(160, 8, generator=generator)
    def __len__(self):
        return 160
    def __getitem__(self, index):
        return self.x[index] + {draw}, self.x[index].sum().sin()[None]
data = Rows()
"""
EMA_CLASS = """
ema = copy.deepcopy(model.module if hasattr(model, "module") else model)
num_updates = 0
"""
EMA_LINES = """
num_updates += 1
decay = min(0.9, (1 + num_updates) / (10 + num_updates))
with torch.no_grad():
    for kept, item in zip(ema.parameters(), model.parameters()):
        kept.lerp_(item, 1 - decay)
"""
INNER = """
class Outer(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))
        self.velocity = {}
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for number, p in enumerate(group["params"]):
                v = self.velocity.get(number)
                v = self.velocity[number] = p.grad.clone() if v is None else 0.9 * v + p.grad
                p.add_(v, alpha=-group["lr"])
"""
OUTSIDE = "velocities = {}\n" + INNER.replace(
    "        self.velocity = {}\n", ""
).replace("self.velocity", "velocities")
HEAD_BODY = """
optimizer.zero_grad(); head_optimizer.zero_grad()
loss = nn.functional.mse_loss(head(model(inputs)), targets)
loss.backward()
optimizer.step(); head_optimizer.step()
"""
CARRY_BODY = """
optimizer.zero_grad()
out, hidden = rnn(model(inputs)[:, None], hidden if hidden is not None else None)
hidden = hidden.detach()
loss = (out[:, 0, :1] - targets).square().mean()
loss.backward()
optimizer.step()
"""
HELD_BODY = """
loss = nn.functional.mse_loss(model(inputs), targets) / 3
loss.backward()
count += 1
if count % 3 == 0:
    optimizer.step()
    optimizer.zero_grad()
"""

# Rounding grows in these, for three reasons: two runs of each that differ by 1e-7 at
# first have little in common after some tens of steps.
DEEP = (
    "model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), "
    "nn.Linear(32, 1))"
)
RECURRENT = """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(1, 24, batch_first=True)
        self.head = nn.Linear(24, 1)
        with torch.no_grad():
            self.rnn.weight_hh_l0.mul_(2.1)
    def forward(self, x):
        return self.head(self.rnn(x.repeat(1, 4)[:, :, None])[0][:, -1])
model = Recurrent()
"""
LARGE_RATE = {
    "model": DEEP,
    "optimizer": "optimizer = torch.optim.Adam(model.parameters(), lr=0.5)",
}
CLIPPED = {
    "model": DEEP,
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)",
}
RECURRENT_RATE = {
    "model": RECURRENT,
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, "
    "momentum=0.9)",
}
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"

FAULTS = (
    Planted(
        name="token-mean",
        source=script(
            data=TEXTS, model=WORDS, body=TOKEN_BODY, options=", collate_fn=collate"
        ),
        kinds=("weighted-mean",),
        words=("run.weight",),
    ),
    Planted(
        name="box-mean",
        source=script(body=BOX_BODY),
        kinds=("weighted-mean",),
        words=("run.weight",),
    ),
    Planted(
        name="pair-mean",
        source=script(body=PAIR_BODY),
        kinds=("pass-statistics", "weighted-mean"),
    ),
    Planted(
        name="advantages-normalised",
        source=script(body=NORMALISED_BODY),
        kinds=("pass-statistics",),
    ),
    Planted(
        name="contrast-within-a-pass",
        source=script(
            model="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))",
            body=CONTRAST_BODY,
        ),
        kinds=("pass-statistics",),
    ),
    Planted(
        name="noise-in-the-loop",
        source=script(body=NOISE_BODY.format(draw="torch.randn_like(inputs)")),
        kinds=("random-numbers",),
        words=("torch",),
    ),
    Planted(
        name="numpy-noise-in-the-loop",
        source=script(
            body=NOISE_BODY.format(
                draw="torch.from_numpy(np.random.randn(*inputs.shape)).float()"
            )
        ),
        kinds=("random-numbers",),
        words=("numpy",),
    ),
    Planted(
        name="noise-from-an-own-generator",
        source=script(
            begin="noise = torch.Generator().manual_seed(7)",
            body=NOISE_BODY.format(draw="torch.randn(inputs.shape, generator=noise)"),
        ),
        kinds=("own-generator",),
        words=("noise",),
    ),
    Planted(
        name="augmentation-in-the-data-set",
        source=script(data=RANDOM_ROWS.format(draw="0.5 * torch.randn(8)")),
        kinds=("random-numbers",),
        words=("data set",),
    ),
    Planted(
        name="data-seeded-by-rank",
        source=script(
            data=DATA.replace(
                "manual_seed(1)", 'manual_seed(int(os.environ.get("RANK", 0)))'
            )
        ),
        kinds=("data-by-rank", "refused"),
        words=("seed",),
    ),
    Planted(
        name="data-drawn-after-a-seed-by-rank",
        source=script(
            data="torch.manual_seed(100 + run.rank)\nx = torch.randn(160, 8)\n"
            "data = TensorDataset(x, x.sum(1, keepdim=True).sin())"
        ),
        kinds=("data-by-rank", "refused"),
    ),
    Planted(
        name="rate-from-a-count-of-the-loop",
        source=script(
            begin="iter_num = 0",
            body=BODY.format(extra="")
            + (
                "iter_num += 1\nfor g in optimizer.param_groups:\n    g['lr'] = 0.01 "
                "/ (1 + 0.1 * iter_num)"
            ),
        ),
        kinds=("starts-again-rate",),
        words=("iter_num", "run.state"),
    ),
    Planted(
        name="loss-weight-from-a-count-of-the-loop",
        source=script(
            begin="anneal = 0",
            body=BODY.format(extra="").replace(
                "targets)",
                "targets) + min(1.0, anneal / 20) * model(inputs).square().mean()",
            )
            + "anneal += 1",
        ),
        kinds=("starts-again-parameters",),
        words=("anneal",),
    ),
    Planted(
        name="scheduler-not-prepared",
        source=script(
            after="sched = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)",
            body=BODY.format(extra="") + "sched.step()",
        ),
        kinds=("starts-again-rate",),
        words=("sched", "prepare_scheduler"),
    ),
    Planted(
        name="rate-by-the-clock",
        source=script(
            begin="began = time.time()",
            body=BODY.format(extra="")
            + (
                "for g in optimizer.param_groups:\n    g['lr'] = 0.01 / (1 + 0.1 * "
                "(time.time() - began))"
            ),
        ),
        kinds=("rate-by-time",),
    ),
    Planted(
        name="rate-times-replicas",
        source=script(
            optimizer="optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * "
            "run.num_replicas)"
        ),
        kinds=("rate-by-replicas",),
    ),
    Planted(
        name="plateau-of-a-local-loss",
        source=script(
            after="sched = "
            "run.prepare_scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau("
            "optimizer, patience=0, factor=0.5))",
            body=BODY.format(extra="") + "sched.step(loss.item())",
        ),
        kinds=("rate-by-local-figure",),
    ),
    Planted(
        name="state-beside-the-optimiser",
        source=script(
            before=OUTSIDE, optimizer="optimizer = Outer(model.parameters(), lr=0.01)"
        ),
        kinds=("starts-again-parameters", "refused"),
        words=("velocities",),
    ),
    Planted(
        name="second-optimiser-not-prepared",
        source=script(
            model="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh())\nhead = "
            "nn.Linear(16, 1)",
            after="head_optimizer = torch.optim.AdamW(head.parameters(), lr=0.01)",
            body=HEAD_BODY,
        ),
        kinds=("trained-beside",),
        words=("head",),
    ),
    Planted(
        name="average-not-registered",
        source=script(
            after=EMA_CLASS,
            body=BODY.format(extra="") + EMA_LINES,
        ),
        kinds=("not-kept",),
        words=("ema", "run.register"),
    ),
    Planted(
        name="sum-over-samples",
        source=script(
            body=BODY.format(extra="").replace("targets)", 'targets, reduction="sum")'),
            optimizer="optimizer = torch.optim.SGD(model.parameters(), lr=0.0005)",
        ),
        kinds=("sum",),
        words=('reduction="sum"',),
    ),
    Planted(
        name="hidden-state-carried",
        source=script(
            model="model = nn.Linear(8, 8)\nrnn = nn.GRU(8, 8, batch_first=True)\n"
            "model.add_module('rnn', rnn)",
            options=", drop_last=True",
            begin="hidden = None",
            body=CARRY_BODY,
        ),
        kinds=("carried", "refused"),
        words=("hidden",),
    ),
    Planted(
        name="stream-split-by-rank",
        source=script(data=STREAM),
        kinds=("unlike-streams", "refused", "stream-split"),
    ),
    Planted(
        name="accumulation-by-hand",
        source=script(begin="count = 0", body=HELD_BODY),
        kinds=("own-accumulation", "refused"),
        words=("max_atomic",),
    ),
    Planted(
        name="not-a-number",
        source=script(
            begin="count = 0",
            body=BODY.format(extra="").replace(
                "loss.backward()",
                "count += 1\nloss = loss if count < 12 else loss * "
                "float('nan')\nloss.backward()",
            ),
        ),
        kinds=("not-finite",),
        words=("step 12",),
    ),
    Planted(
        name="batch-normalisation",
        source=script(
            model="model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), "
            "nn.Tanh(), nn.Linear(16, 1))"
        ),
        kinds=("layers",),
        words=("batch normalisation",),
    ),
    Planted(
        name="last-batch-left-out-by-length",
        source=script(
            body="if len(inputs) < 16:\n    continue" + BODY.format(extra=""),
            data=DATA.replace("160", "168"),
        ),
        kinds=("skips-batches",),
        words=("drop_last",),
    ),
    Planted(
        name="clipped-before-the-average",
        source=script(
            after="for p in model.parameters():\n    p.register_hook(lambda g: "
            "g.clamp(-0.02, 0.02))"
        ),
        kinds=("hooks",),
        words=("hook",),
    ),
    Planted(
        name="data-by-the-time",
        source=script(
            data="draw = np.random.default_rng(time.time_ns())\n"
            "x = torch.from_numpy(draw.standard_normal((160, 8))).float()\n"
            "data = TensorDataset(x, x.sum(1, keepdim=True).sin())"
        ),
        kinds=("data-by-time",),
    ),
    Planted(
        name="left-by-a-local-loss",
        source=script(
            data=DATA.replace("160", "48"),
            epochs="30",
            begin="best = 1e9",
            over="if loss.item() > best:\n    break\nbest = loss.item()",
        ),
        kinds=("left-early",),
        words=("totals",),
    ),
    Planted(
        name="batch-times-replicas",
        source=script(batch="16 * run.num_replicas"),
        kinds=("batch-by-replicas",),
    ),
    Planted(
        name="weights-set-on-the-first-replica",
        source=script(
            body=BODY.format(extra="")
            + (
                "if run.is_first:\n    with torch.no_grad():\n        "
                "next(model.parameters()).mul_(0.99)"
            )
        ),
        kinds=("set-by-hand",),
    ),
    Planted(
        name="model-not-the-prepared-one",
        source=script(
            after="plain = model.module",
            body=BODY.format(extra="").replace("model(inputs)", "plain(inputs)"),
        ),
        kinds=("own-model", "refused"),
    ),
    Planted(
        name="unseeded-noise",
        source=script(
            begin="noise = np.random.default_rng()",
            body=NOISE_BODY.format(
                draw="torch.from_numpy(noise.standard_normal(inputs.shape)).float()"
            ),
        ),
        kinds=("not-repeatable",),
    ),
    # Faults in scripts in which rounding grows: they show before it has.
    Planted(
        name="box-mean-at-a-large-rate",
        source=script(body=BOX_BODY, **LARGE_RATE),
        kinds=("weighted-mean",),
        words=("run.weight",),
    ),
    Planted(
        name="loss-weight-from-a-count-at-a-large-rate",
        source=script(
            begin="anneal = 0",
            body=BODY.format(extra="").replace(
                "targets)",
                "targets) + min(1.0, anneal / 20) * model(inputs).square().mean()",
            )
            + "anneal += 1",
            **LARGE_RATE,
        ),
        kinds=("starts-again-parameters",),
        words=("anneal",),
    ),
    Planted(
        name="state-beside-the-optimiser-of-a-recurrent-network",
        source=extra(
            CLIP,
            before=OUTSIDE,
            model=RECURRENT,
            optimizer="optimizer = Outer(model.parameters(), lr=0.05)",
        ),
        kinds=("starts-again-parameters", "refused"),
        words=("velocities",),
    ),
)

SOUND = {
    "plain": script(),
    "shuffled": script(options=", shuffle=True"),
    "rest": script(data=DATA.replace("160", "150")),
    "drop-last": script(data=DATA.replace("160", "150"), options=", drop_last=True"),
    "clipped": extra("nn.utils.clip_grad_norm_(model.parameters(), 0.1)"),
    "momentum": script(
        optimizer="optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, "
        "nesterov=True)"
    ),
    "lion-like": script(
        optimizer="optimizer = torch.optim.Adafactor(model.parameters(), lr=0.01)"
    ),
    "state-within-the-optimiser": script(
        before=INNER, optimizer="optimizer = Outer(model.parameters(), lr=0.01)"
    ),
    "amsgrad": script(
        optimizer="optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)"
    ),
    "scheduler": script(
        after="sched = "
        "run.prepare_scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 5, "
        "0.7))",
        body=BODY.format(extra="") + "sched.step()",
    ),
    "one-cycle": script(
        after="sched = run.prepare_scheduler(torch.optim.lr_scheduler.OneCycleLR("
        "optimizer, 0.02, total_steps=50))",
        body=BODY.format(extra="") + "sched.step()",
    ),
    "rate-from-progress": script(
        body="for g in optimizer.param_groups:\n    g['lr'] = 0.01 / (1 + 0.1 * "
        "run.progress.step)" + BODY.format(extra="")
    ),
    "count-in-state": script(
        begin="state = run.state(iter_num=0)",
        body=BODY.format(extra="")
        + "state.iter_num += 1\nfor g in optimizer.param_groups:\n"
        "    g['lr'] = 0.01 / (1 + 0.1 * state.iter_num)",
    ),
    "count-that-is-only-printed": script(
        begin="seen = 0", body=BODY.format(extra="") + "seen += len(inputs)"
    ),
    "passes": script(options=", max_atomic=5"),
    "sum-that-is-said": script(
        how=', reduction="sum"',
        body=BODY.format(extra="").replace("targets)", 'targets, reduction="sum")'),
        optimizer="optimizer = torch.optim.SGD(model.parameters(), lr=0.0005)",
    ),
    "group-norm": script(
        model="model = nn.Sequential(nn.Linear(8, 16), nn.GroupNorm(4, 16), nn.Tanh(), "
        "nn.Linear(16, 1))"
    ),
    "dropout": script(
        model="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), "
        "nn.Linear(16, 1))"
    ),
    "dropout-of-rate-0": script(
        model="model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.0), nn.Tanh(), "
        "nn.Linear(16, 1))"
    ),
    "average-registered": script(
        after="ema = torch.optim.swa_utils.AveragedModel(model)\nrun.register('ema', "
        "ema)",
        body=BODY.format(extra="") + "ema.update_parameters(model)",
    ),
    "two-pairs": script(
        model="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh())\nhead = "
        "nn.Linear(16, 1)",
        after="head, head_optimizer = run.prepare(head, "
        "torch.optim.AdamW(head.parameters(), "
        "lr=0.01), name='head')",
        body=HEAD_BODY,
    ),
    "frozen-teacher": script(
        after="teacher = nn.Linear(8, 1).eval()",
        body=BODY.format(extra="").replace(
            "targets)", "targets + teacher(inputs).detach())"
        ),
    ),
    "early-stop": script(
        epochs="12",
        begin="state = run.state(best=1e9, bad=0)\nheld = run.validation_loader(data, "
        "batch_size=20)",
        over="model.eval()\nwith torch.no_grad():\n    for a, b in held:\n"
        "        run.mean(loss=nn.functional.mse_loss(model(a), b))\nmodel.train()\n"
        "figure = held.totals()['loss']\nstate.bad = 0 if figure < state.best - 0.02 "
        "else state.bad + 1\n"
        "state.best = min(state.best, figure)\nif state.bad >= 2:\n    break",
    ),
    "weights-changed-at-the-end": script(
        epochs="3", end="with torch.no_grad():\n    next(model.parameters()).mul_(0.5)"
    ),
    "plateau-of-totals": script(
        after="sched = "
        "run.prepare_scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau("
        "optimizer, patience=0, factor=0.5))",
        body=BODY.format(extra="") + "run.mean(loss=loss)",
        over="sched.step(run.totals()['loss'])",
    ),
    "noise-by-the-sample": script(
        data=RANDOM_ROWS.format(
            draw="0.5 * torch.randn(8, generator=torch.Generator().manual_seed(index))"
        )
    ),
    "two-backwards": script(
        body="optimizer.zero_grad()\nout = model(inputs)\n"
        "(out - targets).square().mean().backward()\n"
        "loss = 0.1 * model(inputs).square().mean()\nloss.backward()\noptimizer.step()"
    ),
    "texts-by-sample": script(
        data=TEXTS,
        model=WORDS,
        options=", collate_fn=collate",
        body=TOKEN_BODY.replace(
            "logits = model(inputs).flatten(0, 1)",
            "each = nn.functional.cross_entropy(model(inputs).transpose(1, 2), "
            "targets, "
            "ignore_index=-100, reduction='none')",
        ).replace(
            "loss = nn.functional.cross_entropy(logits, targets.flatten(), "
            "ignore_index=-100)",
            "loss = (each.sum(1) / (targets >= 0).sum(1)).mean()",
        ),
    ),
    "in-a-class": "import torch\nfrom torch import nn\nimport coadapt.train as ct\n"
    "class Trainer:\n"
    "    def __init__(self):\n"
    "        self.run = ct.init(); torch.manual_seed(0)\n"
    "        net = nn.Linear(8, 1)\n"
    "        self.model, self.optimizer = self.run.prepare(net, "
    "torch.optim.SGD(net.parameters(), lr=0.05))\n"
    "        x = torch.randn(160, 8)\n"
    "        self.loader = self.run.loader(torch.utils.data.TensorDataset(x, x[:, "
    ":1]), batch_size=16)\n"
    "        self.steps = 0\n"
    "    def step(self, x, y):\n"
    "        self.optimizer.zero_grad()\n"
    "        nn.functional.mse_loss(self.model(x), y).backward()\n"
    "        self.optimizer.step()\n"
    "        self.steps += 1\n"
    "    def fit(self):\n"
    "        for _ in self.run.epochs(4):\n"
    "            for x, y in self.loader:\n"
    "                self.step(x, y)\n"
    "Trainer().fit()\n",
    "short": script(epochs="1", data=DATA.replace("160", "96")),
    "four-steps": script(epochs="1", data=DATA.replace("160", "64")),
    "timer": script(
        begin="began = time.time()\nelapsed = 0.0",
        body=BODY.format(extra="") + "elapsed = time.time() - began",
    ),
    "rounding-grows-by-a-large-rate": script(**LARGE_RATE),
    "rounding-grows-by-clipped-steps": extra(CLIP, **CLIPPED),
    "rounding-grows-in-a-recurrent-network": extra(CLIP, **RECURRENT_RATE),
    "rounding-grows-and-the-rate-follows": extra(
        CLIP + "\nrun.mean(loss=loss)",
        after="sched = run.prepare_scheduler(torch.optim.lr_scheduler."
        "ReduceLROnPlateau(optimizer, patience=0, factor=0.9))\n"
        "state = run.state(best=1e9)\nema = torch.optim.swa_utils."
        "AveragedModel(model)\nrun.register('ema', ema)",
        over="figure = run.totals()['loss']\nsched.step(figure)\n"
        "state.best = min(state.best, figure)\nema.update_parameters(model)",
        **CLIPPED,
    ),
}
