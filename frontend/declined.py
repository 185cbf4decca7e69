"""What an importer raises where it cannot import a use of an operation; the text says why."""


class Declined(Exception):
    """A use of an operation that cannot be imported."""


class Refused(Declined):
    """One that no call of the framework could stand for either.

    As where the number of its results, or their rank, depends on sizes.
    """
