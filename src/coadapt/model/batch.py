"""How a total batch is cut over replicas and accumulation steps."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """A total batch size M cut into atomic batches m with s accumulation steps (Pollux,
    OSDI'21, §3.1).

    atomic: samples of one forward-backward pass on one replica. accumulation: passes
    *before* the synchronising one. total: samples of one optimiser step, at most
    replicas * atomic * (accumulation + 1); it is less where the total does not divide
    evenly (contract `fixed`: the last shard is smaller).
    """

    total: int
    atomic: int
    accumulation: int = 0

    def __post_init__(self) -> None:
        if self.atomic < 1:
            raise ValueError(f"BatchConfig.atomic must be >= 1, got {self.atomic}")
        if self.accumulation < 0:
            raise ValueError(
                f"BatchConfig.accumulation must be >= 0, got {self.accumulation}"
            )
        if self.total < 1:
            raise ValueError(f"BatchConfig.total must be >= 1, got {self.total}")
