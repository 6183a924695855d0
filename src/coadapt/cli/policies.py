"""`coadapt policies`: what `--policy` accepts."""

import typer


def policies() -> None:
    """List the scheduling policies, installed ones included."""
    from coadapt.policies import policy_names, policy_options

    for name in policy_names():
        options = ", ".join(f"{option}={default!r}" for option, default in policy_options(name).items())
        typer.echo(f"{name:16}{options}")
