"""Castor: GPUs go where they save most completion time. Read noise, rates, fluid,
values, round, placing.
"""
