"""The replicas that train together, and the messages between them."""
