"""Random numbers of training: streams of the replicas, and draws that follow from a
sample's place.
"""
