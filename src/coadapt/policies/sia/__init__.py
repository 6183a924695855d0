"""Sia (Jayaram Subramanya et al., SOSP 2023): an integer programme over GPU types and
counts.
"""
