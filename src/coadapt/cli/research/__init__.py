"""Verbs for whoever studies schedulers: no running scheduler is needed."""
