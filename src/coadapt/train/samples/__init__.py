"""The samples of each step and their order, for any number of replicas. No
torch.distributed.
"""
