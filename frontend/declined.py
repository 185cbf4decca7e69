"""What an importer raises where it cannot import a use of an operation; the text says why."""


class Declined(Exception):
    """A use of an operation that cannot be imported."""
