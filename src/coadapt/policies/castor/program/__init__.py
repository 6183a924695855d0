"""The round's program: options of jobs within what there is, prices that bound it, and
the choice.
"""
