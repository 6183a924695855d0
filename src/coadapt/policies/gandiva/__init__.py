"""Gandiva (Xiao et al., OSDI 2018): whole jobs take turns on servers, and are packed,
moved and grown.
"""
