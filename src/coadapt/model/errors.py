"""The one error for bad input at an edge: it names the field, the value, and what is allowed."""


class InputError(ValueError):
    """Bad input from a user: a file, a flag, a request. Prints as one line; commands exit with 2.

    field: where it stands (`resources.gpus`, `workload.csv line 7, time`, `--policy`). value: what was given.
    allowed: what would be accepted.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field}: got {_shown(value)}; allowed: {allowed}")

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, object, str]]:
        # Exceptions pickle by their text; this one has to come back whole from another process.
        return InputError, (self.field, self.value, self.allowed)


def _shown(value: object, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
