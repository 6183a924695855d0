"""Policies that choose how many GPUs each job gets, from a model of how it scales; a file each."""
