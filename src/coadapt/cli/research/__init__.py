"""Verbs for the study of schedulers: no running scheduler is needed."""
