"""Which samples a step takes, in which order, over any number of replicas. No
torch.distributed.
"""
