"""What a maintainer runs: house rules, the state diagram, the golden list of public
names.
"""
