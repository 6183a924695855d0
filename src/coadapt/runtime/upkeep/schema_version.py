"""The version of the journal that this Coadapt writes; it needs nothing else, so that
`--version` has it.
"""

SCHEMA_VERSION = 2
