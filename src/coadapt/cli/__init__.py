"""Floor 5: the command line, one file per verb; the only place where everything
meets.
"""
