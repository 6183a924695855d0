"""What keeps a journal usable: waiting for it, its version, and bringing it over from
an earlier one.
"""
