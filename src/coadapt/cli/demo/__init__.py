"""`coadapt demo`: NumPy jobs under two schedulers side by side."""
