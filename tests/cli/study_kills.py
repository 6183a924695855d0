"""A study amid preemptions, kill -9 of the scheduler, and of the command that submits
it: no trial lost, none run twice, the same best one.

    python -m tests.cli.study_kills --preemptions 100 --kills 3

With `--forked`, trials are scripts in Python that start as forks.

Trials have the contract `fixed`, and their parameters come from RandomSampler, so what
an undisturbed study finds is known. A quota of no GPUs for all tenants preempts every
trial that runs.
"""

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coadapt import Client
from coadapt.client import Sweep, Trial
from coadapt.service.studies.optuna_study import first_trials
from coadapt.service.studies.search_file import read_search_file
from tests.cli.live_cluster import COMMAND, LiveCluster, until

NAME = "amid-kills"
EPOCHS = 4
SLOTS = 4
BEST_RATE = 300
WAIT_S = 300.0

# An epoch is a pause, a report, and a checkpoint. A report waits for a scheduler that
# is away. The last epoch waits for the gate, so a study lasts until all preemptions and
# kills have happened. Starts are noted outside the folders of the jobs, as checkpoints
# of pruned trials are removed.
TRIAL = """\
notes="$NOTES/$COADAPT_JOB"
exec 9> "$notes.alive"
flock -n 9 || { echo "two lives" >> "$notes"; exit 1; }
cd "$COADAPT_CHECKPOINT_DIR"
epoch=$(cat epoch 2> /dev/null || echo 0)
echo "$COADAPT_GENERATION $epoch" >> "$notes"
trap 'exit 75' TERM
far=$((COADAPT_PARAM_rate - BEST_RATE))
while [ $epoch -lt EPOCHS ]; do
  sleep 0.2
  if [ $epoch = $((EPOCHS - 1)) ]; then
    until [ -e "$NOTES/gate" ]; do sleep 0.05; done
  fi
  next=$((epoch + 1))
  values="{\\"score\\": $((next * (1000000 - far * far))), \\"epoch\\": $next}"
  report="{\\"progress\\": $next, \\"samples\\": $next, \\"metrics\\": $values}"
  body="{\\"generation\\": $COADAPT_GENERATION, \\"report\\": $report}"
  address=${COADAPT_URL#http://}
  until {
    exec 3<> "/dev/tcp/${address%:*}/${address#*:}" &&
    printf 'POST /v1/jobs/%s/reports HTTP/1.1\\r\\nHost: %s\\r\\n' \\
      "$COADAPT_JOB" "$address" >&3 &&
    printf 'Authorization: Bearer %s\\r\\nConnection: close\\r\\n' \\
      "$COADAPT_TOKEN" >&3 &&
    printf 'Content-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n%s' \\
      ${#body} "$body" >&3 &&
    read -r -u 3 answer && [[ $answer == *" 20"* ]]
  } 2> /dev/null; do sleep 0.1; done
  exec 3>&-
  epoch=$next
  echo $epoch > epoch.new; mv epoch.new epoch
done
""".replace("BEST_RATE", str(BEST_RATE)).replace("EPOCHS", str(EPOCHS))

# The same as a script in Python, which also counts its starts as a fork.
PYTHON_TRIAL = """\
import fcntl, json, os, signal, sys, time, urllib.request
from pathlib import Path

job = os.environ["COADAPT_JOB"]
generation = int(os.environ["COADAPT_GENERATION"])
rate = int(os.environ["COADAPT_PARAM_rate"])
notes = Path(os.environ["NOTES"])

def note(text, name=job):
    with open(notes / name, "a") as file:
        print(text, file=file)

alive = open(notes / f"{job}.alive", "w")
try:
    fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    note("two lives")
    sys.exit(1)
os.chdir(os.environ["COADAPT_CHECKPOINT_DIR"])
epoch = int(Path("epoch").read_text()) if Path("epoch").exists() else 0
note(f"{generation} {epoch}")
if "torch" in sys.modules:
    note(job, "forks")
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
headers = {
    "Authorization": "Bearer " + os.environ["COADAPT_TOKEN"],
    "Content-Type": "application/json",
}
url = os.environ["COADAPT_URL"] + f"/v1/jobs/{job}/reports"
while epoch < EPOCHS:
    time.sleep(0.2)
    while epoch == EPOCHS - 1 and not (notes / "gate").exists():
        time.sleep(0.05)
    score = (epoch + 1) * (1_000_000 - (rate - BEST_RATE) ** 2)
    report = {"progress": epoch + 1, "samples": epoch + 1,
              "metrics": {"score": score, "epoch": epoch + 1}}
    body = json.dumps({"generation": generation, "report": report}).encode()
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, headers)).close()
            break
        except OSError:
            time.sleep(0.1)
    epoch += 1
    Path("epoch.new").write_text(str(epoch))
    os.replace("epoch.new", "epoch")
""".replace("BEST_RATE", str(BEST_RATE)).replace("EPOCHS", str(EPOCHS))


def score(rate: int) -> float:
    """Return the final value of a trial with this parameter."""
    return float(EPOCHS * (1_000_000 - (rate - BEST_RATE) ** 2))


@dataclass(slots=True, kw_only=True)
class Disturbed:
    """A study and what disturbs it; its files are in the cluster's folder."""

    cluster: LiveCluster
    draw: random.Random
    num_trials: int
    forked: bool = False

    @property
    def notes(self) -> Path:
        return self.cluster.folder / "notes"

    @property
    def file(self) -> Path:
        return self.cluster.folder / "search.yaml"

    @property
    def study(self) -> Sweep:
        return Client(self.cluster.state).sweep(NAME)

    def write(self) -> None:
        self.notes.mkdir()
        (self.cluster.folder / "trial.py").write_text(PYTHON_TRIAL)
        document = {
            "name": NAME,
            "run": "python trial.py" if self.forked else TRIAL,
            "workdir": str(self.cluster.folder),
            "envs": {"NOTES": str(self.notes)},
            "batch": {"initial": 8},
            "contract": "fixed",
            "max_failures": 0,
            "search": {
                "space": {"rate": {"type": "int", "low": 0, "high": 1000}},
                "metric": "score",
                "step": "epoch",
                "direction": "maximize",
                "n_trials": self.num_trials,
                "n_jobs": SLOTS,
                "sampler": "RandomSampler",
                "pruner": {
                    "SuccessiveHalvingPruner": {
                        "min_resource": 1,
                        "reduction_factor": 2,
                    }
                },
            },
        }
        self.file.write_text(json.dumps(document))

    def submit(self, kills: int) -> None:
        """Submit the search by the command; kill -9 it so many times before."""
        command = [
            *COMMAND,
            "sweep",
            str(self.file),
            "--state",
            str(self.cluster.state),
        ]
        for _ in range(kills):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as client:
                time.sleep(self.draw.uniform(0.2, 1.5))
                client.kill()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def disturb(self, preemptions: int, kills: int) -> None:
        """Preempt trials until there were so many preemptions; meanwhile kill the
        scheduler.
        """
        killed = 0
        started = 0
        while (done := self.preemptions()) < preemptions or killed < kills:
            self._until_started(started + 1)
            time.sleep(self.draw.uniform(0.0, 0.6))
            self._grant(0)
            if killed < kills and done >= killed * preemptions / kills:
                time.sleep(self.draw.uniform(0.0, 0.3))
                self.cluster.kill()
                self.cluster.up(SLOTS)
                killed += 1
            until(lambda: self._held() == 0, "all are preempted", within_s=WAIT_S)
            started = self._started()
            self._grant(None)

    def preemptions(self) -> int:
        """Return how often a trial was started again."""
        return self._started() - len(self.starts())

    def starts(self) -> dict[str, list[str]]:
        """Return the generation and epoch of each start, by job."""
        return {
            path.name: path.read_text().splitlines()
            for path in sorted(self.notes.glob(f"{NAME}-*"))
            if path.suffix != ".alive"
        }

    def num_forks(self) -> int:
        """Return how many starts were forks."""
        forks = self.notes / "forks"
        return len(forks.read_text().splitlines()) if forks.exists() else 0

    def end(self) -> Sweep:
        """Let the trials end; return the study once it is done."""
        (self.notes / "gate").touch()
        until(lambda: self.study.state == "done", "the study is done", within_s=WAIT_S)
        return self.study

    def _grant(self, quota: int | None) -> None:
        self.cluster.client.put("/v1/tenants/%2A", {"quota_gpus": quota})

    def _until_started(self, count: int) -> None:
        until(lambda: self._started() >= count, "a trial runs", within_s=WAIT_S)

    def _started(self) -> int:
        return sum(len(rows) for rows in self.starts().values())

    def _held(self) -> int:
        return sum(job.num_gpus for job in Client(self.cluster.state).jobs())


def faults(disturbed: Disturbed, study: Sweep) -> Iterator[str]:
    """Yield what is wrong with a study that is done."""
    jobs = Client(disturbed.cluster.state).jobs(name=NAME)
    if disturbed.forked != bool(disturbed.num_forks()):
        yield f"{disturbed.num_forks()} starts were forks"
    expected = first_trials(read_search_file(disturbed.file), disturbed.num_trials)
    if [trial.params for trial in study.trials] != expected:
        yield "trials are lost, doubled, or have other parameters"
    if sorted(job.id for job in jobs) != sorted(trial.job for trial in study.trials):
        yield f"{len(jobs)} jobs for {len(study.trials)} trials"
    for trial in study.trials:
        rows = disturbed.starts().get(trial.job, [])
        yield from trial_faults(trial, rows)
    best = max(expected, key=lambda params: score(int(params["rate"])))
    if study.best is None or study.best.params != best:
        yield f"the best is {study.best}, not {best}"


def trial_faults(trial: Trial, starts: list[str]) -> Iterator[str]:
    """Yield what is wrong with a trial; `starts`: generation and epoch of each."""
    if trial.state not in ("complete", "pruned"):
        yield f"{trial.number} is {trial.state}: {trial.why}"
    if trial.state == "complete" and trial.value != score(int(trial.params["rate"])):
        yield f"{trial.number} has the value {trial.value}"
    if any("two lives" in row for row in starts) or not starts:
        yield f"{trial.number}: {starts}"
        return
    pairs = [tuple(map(int, row.split())) for row in starts]
    generations = [generation for generation, _ in pairs]
    epochs = [epoch for _, epoch in pairs]
    if len(set(generations)) < len(generations):
        yield f"{trial.number} ran twice in a generation: {starts}"
    if epochs != sorted(epochs):
        yield f"{trial.number} lost epochs: {starts}"


def play(
    folder: Path,
    *,
    num_trials: int,
    preemptions: int,
    kills: int,
    seed: int = 0,
    forked: bool = False,
) -> tuple[Sweep, int, list[str]]:
    """Return the study, how often its trials were preempted, and what is wrong."""
    cluster = LiveCluster(folder)
    disturbed = Disturbed(
        cluster=cluster,
        draw=random.Random(seed),
        num_trials=num_trials,
        forked=forked,
    )
    disturbed.write()
    try:
        cluster.up(SLOTS)
        disturbed.submit(kills)
        disturbed.disturb(preemptions, kills)
        study = disturbed.end()
        if forked:
            print(f"{disturbed.num_forks()} starts were forks", flush=True)
        return study, disturbed.preemptions(), list(faults(disturbed, study))
    finally:
        cluster.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--preemptions", type=int, default=100)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forked", action="store_true")
    given = parser.parse_args()
    best = []
    for preemptions, kills in ((0, 0), (given.preemptions, given.kills)):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            study, preempted, found = play(
                Path(folder),
                num_trials=given.trials,
                preemptions=preemptions,
                kills=kills,
                seed=given.seed,
                forked=given.forked,
            )
        assert study.best is not None
        best.append((study.best.number, study.best.value))
        states = [trial.state for trial in study.trials]
        print(
            f"{len(study.trials)} trials: {states.count('complete')} complete, "
            f"{states.count('pruned')} pruned; {preempted} preemptions, {kills} kills "
            f"each of scheduler and command; best {best[-1]}; "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
        assert not found, found
    assert best[0] == best[1], best


if __name__ == "__main__":
    main()
