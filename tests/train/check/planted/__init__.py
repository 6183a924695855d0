"""Small training scripts, sound ones and ones with a planted fault, for `coadapt
check`.
"""
