"""What lies on disk for each job: the scheduler's records, the job's own directory, and
logs.
"""
