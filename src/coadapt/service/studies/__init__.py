"""Searches over hyper-parameters: a study is an object of the service, its trials are
jobs, and Optuna does the searching.
"""
