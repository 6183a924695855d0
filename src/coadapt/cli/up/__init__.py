"""`coadapt up`: settings, and the parts that the live scheduler is made of."""
