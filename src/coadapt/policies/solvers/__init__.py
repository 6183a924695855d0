"""Solvers that several policies need."""
