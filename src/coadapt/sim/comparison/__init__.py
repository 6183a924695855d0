"""Floor 4: many runs side by side, kept while they go on, and what they say
together.
"""
