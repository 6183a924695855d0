"""Other libraries' training loops and trackers with coadapt.train; each module imports
its own library.

Nothing of this is needed by coadapt.train itself. See docs/integrations.md.
"""
