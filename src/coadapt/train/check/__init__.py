"""`coadapt check`: a training script alone and under a random schedule of rescales, and
what differs.
"""
