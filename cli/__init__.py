"""The command line: `tilewright VERB`, one file a verb. Loads nothing heavy before a verb runs."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line on `argv` (default: the process's) and exit with its code."""
    from .interruption import watched

    with watched():
        from .app import run  # typer is loaded only when the command line is used

        run(argv)
