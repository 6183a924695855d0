"""What `coadapt doctor` says of the jobs' own directories: which of them are not as
they were made.
"""

import typer

from coadapt.cli.state_dir import StateDir


def look_at_job_dirs(directory: StateDir) -> bool:
    """Name the jobs whose directory something else stands in place of, or is missing
    while they run.

    Return whether there is none. The scheduler runs all the same.
    """
    from coadapt.executors.processes.records.generation_dir import (
        JOBS,
        RECORDS,
        JobDir,
        lock_is_free,
    )
    from coadapt.executors.processes.records.own_files import (
        damage_of,
        is_there,
        names_in,
        path_is_dir,
    )

    sound = True
    for name in names_in(directory.path / RECORDS):
        job = JobDir.of(directory.path, name)
        damage = damage_of(job.path)
        replaced = is_there(job.path) and not path_is_dir(job.path)
        lives = not lock_is_free(job.records / "lock")
        if damage and (replaced or lives):
            sound = False
            then = (
                "remove it, or the job cannot start"
                if replaced
                else "it is created again"
            )
            typer.echo(f"job        {name}: {damage}; {then}")
        if not path_is_dir(job.records):
            sound = False
            typer.echo(
                f"job        {name}: {job.records} is no directory: the scheduler "
                f"knows nothing of its runs"
            )
    for name in names_in(directory.path / JOBS):
        path = directory.path / JOBS / name
        if not path_is_dir(path) and not is_there(directory.path / RECORDS / name):
            sound = False
            typer.echo(f"job        {path} is no directory of a job: remove it")
    return sound
