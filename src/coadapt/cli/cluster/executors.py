"""`coadapt executors`: what `--executor` and `--executor-option` accept."""

import typer


def executors() -> None:
    """List the engines (executors), including installed ones, with their options."""
    from coadapt.executors import executor_names, executor_options, summary

    for name in executor_names():
        options = ", ".join(
            f"{option}={default!r}"
            for option, default in executor_options(name).items()
        )
        typer.echo(f"{name:16}{summary(name)}")
        typer.echo(f"{'':16}options: {options or 'none'}")
