"""Predictors that several policies need: what is left of a job, and how sure that
is.
"""
