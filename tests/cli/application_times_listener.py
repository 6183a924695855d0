"""Lets a training process write down what the scheduler told it of its application, in
tests.
"""

import json
from pathlib import Path

from coadapt.model import ApplicationTimes
from coadapt.model.wire import to_json
from coadapt.train.report import reporter


def listen(path: str) -> None:
    """Append to `path` what each answer to a report says, as JSON."""
    times_in_answer = reporter.times_in_answer

    def listening(answer: bytes) -> ApplicationTimes | None:
        told = times_in_answer(answer)
        if told is not None:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(to_json(told)) + "\n")
        return told

    reporter.times_in_answer = listening
