"""What executors share that run replicas as processes under a launcher."""
