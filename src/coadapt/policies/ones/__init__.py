"""ONES: online evolutionary orchestration of batch sizes (SC 2021)."""
