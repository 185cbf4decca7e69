"""How long work tells whoever watches how far it is: a function that is handed down to it.

Every layer may call one and none knows who listens, so two compilations at once do not meet.
"""

from collections.abc import Callable

# (stage, done, of): so much of a stage is finished, in the unit of UNITS. Called from one thread at
# a time, though not always from the same; a stage may begin again.
Progress = Callable[[str, int, int], None]

# stage -> what is counted, in the order in which a language model passes through them
UNITS = {
    "start": "",  # nothing to count: libraries are imported, files opened
    "capture": "layers",
    "import": "nodes",
    "optimize": "passes",
    "lower": "groups",
    "compile": "files",
    "pack": "bytes",
    "save": "bytes",
    "load": "bytes",
    "place": "bytes",
    "prefill": "tokens",
    "prompts": "prompts",
    "tune": "s",
}


def unwatched(stage: str, done: int, of: int) -> None:
    """The `Progress` of work that nobody watches."""
