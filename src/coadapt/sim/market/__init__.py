"""Nodes for sale in a simulated run: offers, prices, availability, losses,
and costs.
"""
