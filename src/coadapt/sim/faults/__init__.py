"""Fault simulation: scenarios, what goes wrong, and the invariants that must hold
anyway.
"""
