"""Figures for Prometheus: counted as things happen, timed, or looked up at a scrape."""
