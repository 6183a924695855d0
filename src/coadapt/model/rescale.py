"""What an executor tells running replicas about their next generation, and the files
that it goes through.

All files are in one directory of the job, named by ENV_RESCALE_DIR. Names and values
only.
"""

# Over the network (ENV_CONTROL_URL) the files are notes under CONTROL_PATH, with the
# same names and contents:
#   GET  CONTROL_PATH?after=N   {"version": V, "notes": {name: text}}, once V is not N,
#                               or after 20 s; 0: now
#   PUT  CONTROL_PATH/NAME      the body is the note's text; 204
#   POST CONTROL_PATH/NAME      makes an empty note: 201, or 409 if it was there
# each with the header Authorization: Bearer TOKEN (ENV_CONTROL_TOKEN), else 401.

from dataclasses import dataclass

from coadapt.model.batch import BatchConfig

CONTROL_PATH = "/v1/control"

# Written by the replicas once they can change in place: the script has reached its
# epochs.
CAPABLE_FILE = "capable"
# Written by the executor, whole, before it starts the replicas that join; removed when
# it is taken back. The next one only after that, or after DONE of this one.
ORDER_FILE = "order.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleOrder:
    """The replicas that train in generation `generation`.

    members: names in rank order; those of running replicas stay, those of this
    generation join, and a replica that is not named leaves. placement: replicas per
    node. batch: None where the job picks its own.
    """

    generation: int
    members: tuple[str, ...]
    placement: tuple[int, ...]
    batch: BatchConfig | None = None

    def __post_init__(self) -> None:
        if not self.members or len(set(self.members)) < len(self.members):
            raise ValueError(
                f"RescaleOrder.members must be one or more different names, got "
                f"{self.members}"
            )
        if sum(self.placement) != len(self.members) or min(self.placement) < 1:
            raise ValueError(
                f"RescaleOrder.placement must sum to {len(self.members)} members, "
                f"got {self.placement}"
            )

    @property
    def joiners(self) -> tuple[str, ...]:
        """Return the members that are started for this generation."""
        return tuple(
            name
            for rank, name in enumerate(self.members)
            if name == member_name(self.generation, rank)
        )


def member_name(generation: int, rank: int) -> str:
    """Return the name that a replica keeps for life: the generation and rank that it
    was started with.
    """
    return f"{generation}-{rank}"


def store_file(generation: int) -> str:
    """Return where the first replica of a generation says `host:port` of the store that
    it keeps for it.
    """
    return f"{generation}.store"


def ready_file(member: str) -> str:
    """Return what a joiner writes once it only waits for the others."""
    return f"{member}.ready"


def decided_file(generation: int) -> str:
    """Return what is created once, by the first replica as it offers the change to the
    others, or by the executor to take the order back: the second of the two finds it
    there, and is too late.
    """
    return f"{generation}.decided"


def begun_file(generation: int) -> str:
    """Return what the first replica writes as a change begins. A replica that ends from
    then on has left, or is lost.

    A replica that ended before had come to the end of the training.
    """
    return f"{generation}.begun"


def done_file(generation: int) -> str:
    """Return what the first replica of a generation writes after its first step."""
    return f"{generation}.done"
