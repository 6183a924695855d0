"""The gradient noise scale, its uncertainty, and the rules that scale the learning
rate.
"""
