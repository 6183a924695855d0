"""Lets a training process write down what the scheduler told it of its application, in
tests.
"""

import json
from pathlib import Path

from coadapt.model.wire import to_json
from coadapt.train.report import reporter


def listen(path: str) -> None:
    """Append to `path` what each answer to a report says, as JSON."""
    read = reporter.read_answer

    def listening(answer: bytes) -> reporter.Answer:
        answered = read(answer)
        if answered.application_times is not None:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(to_json(answered.application_times)) + "\n")
        return answered

    reporter.read_answer = listening
