"""Estimates: the scheduler rolled forward from the state of a live one."""
