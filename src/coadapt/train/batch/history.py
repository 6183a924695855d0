"""The batches that a run has trained with, written down so that another run can train
with them again.
"""

import json
import logging
from pathlib import Path

from coadapt.durable import write_whole
from coadapt.train.session import Session

logger = logging.getLogger(__name__)

FILE = "batches.json"


def as_schedule(session: Session) -> str:
    """Return the batches so far as a job file's `batch.schedule`, such as "0:32
    4096:64".
    """
    return " ".join(f"{samples}:{total}" for samples, total in session.data.batches)


def as_job(session: Session) -> dict[str, object]:
    """Return the lines of a job file that train with the same batches from the same
    samples on.
    """
    schedule = as_schedule(session)
    first = session.data.batches[0][1]
    return {
        "contract": "schedule",
        "batch": {"initial": first, "schedule": schedule},
    }


def write_batches(session: Session, folder: Path) -> None:
    """Write the batches so far into `folder`, as JSON that can be pasted into a job
    file (YAML).

    Training goes on where that fails; the log says so.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, json.dumps(as_job(session)) + "\n", durable=False)
    except OSError as error:
        logger.warning("%s was not written: %s; training continues", FILE, error)
