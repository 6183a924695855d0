"""Policies that place by what the network costs a job."""
