"""Verbs that answer from a forecast: what-if, explain, and the dry run of submit."""
