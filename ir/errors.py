"""The errors a caller may meet, one class for each thing the caller can do about it."""

MAX_COLUMNS = 600  # of a line of a message: more is not read, and may be a whole file


class TilewrightError(Exception):
    """Base of every error we raise on purpose.

    A message has four parts: what is wrong, where, the facts that disagree, and what to do. Pass
    the first as `what`, the others by name; each is optional but for `what`. The message
    shows the beginning of overlong lines; the parts have them whole.
    """

    def __init__(self, what: str, *, where: str = "", facts: str = "", fix: str = ""):
        self.what, self.where, self.facts, self.fix = what, where, facts, fix
        lines = [what]
        if where:
            lines.append(f"  at {where}")
        lines += [f"  {line}" for part in (facts, fix) if part for line in part.splitlines()]
        super().__init__(shortened("\n".join(lines)))

    @property
    def kind(self) -> str:
        """The class name: what a command line prints before the message."""
        return type(self).__name__


def shortened(text: str) -> str:
    """A message with its overlong lines cut, and with how long they were."""
    return "\n".join(
        line if len(line) <= MAX_COLUMNS else f"{line[:MAX_COLUMNS]}... ({len(line)} characters)"
        for line in text.split("\n")
    )


class UnsupportedOp(TilewrightError):
    """The model uses operations we cannot import; the message lists all of them."""


class UnsupportedModel(TilewrightError):
    """The model's structure (not one op) cannot be compiled: control flow, mixing of tokens."""


class ShapeError(TilewrightError):
    """Shapes or dtypes of operands or of the caller's inputs disagree."""


class DimError(TilewrightError):
    """A dim is outside its declared range, or cannot be bound from the inputs."""


class ParseError(TilewrightError):
    """Text of the IR, of a dim or of a pipeline is malformed; names line and column."""


class VerifyError(TilewrightError):
    """A graph breaks an invariant; a bug of the pass that made it, or of hand-written text."""


class PassError(TilewrightError):
    """No such pass, a bad pass option, or a pass that cannot do its work on this graph."""


class BuildError(TilewrightError):
    """A compiler is missing or failed; carries its own words and the path of the source."""


class ArtifactError(TilewrightError):
    """A stored program is damaged, of another version, or for another device."""


class CheckpointError(TilewrightError):
    """A model file or folder is missing, truncated, or not a model we can read."""


class DeviceError(TilewrightError):
    """The device asked for is absent, or lacks what the program needs."""


class OutOfMemory(TilewrightError):
    """A buffer could not be had; says how much was needed and how much there was."""


class IndexOutOfRange(TilewrightError, IndexError):
    """An index in the data lies outside the axis that it counts along."""


class DivisionByZero(TilewrightError, ZeroDivisionError):
    """An integer in the data was divided by zero."""


class WrongResult(TilewrightError):
    """A program gives something else than the framework its model is from; says how far off."""


class OutOfPages(TilewrightError):
    """The KV pool cannot hold what one sequence alone needs."""


class RequestError(TilewrightError):
    """A generation request is invalid: empty or too long a prompt, a bad sampling parameter."""


class OptionError(TilewrightError):
    """An option, switch or setting is unknown or has a value out of its domain."""


MAX_LISTED = 10  # problems, or names, that one message shows


def listed(items: list[str] | tuple[str, ...], between: str = "\n") -> str:
    """The first problems as lines, or the first names in one; and how many there are besides."""
    more = len(items) - MAX_LISTED
    return between.join([*items[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])])


def joined(problems: list[TilewrightError], what: str) -> TilewrightError:
    """The only problem as it is; of several, one of the first's class, with a line for each."""
    if len(problems) == 1:
        return problems[0]
    parts = [(p.where, p.what, " ".join(p.facts.split())) for p in problems]
    lines = [": ".join(part for part in said if part) for said in parts]
    fixes = dict.fromkeys(fix for p in problems for fix in p.fix.split("; ") if fix)
    return type(problems[0])(what, facts=listed(lines), fix="; ".join(fixes))


def told(error: BaseException) -> str:
    """What another library's error says, in one line of bounded length."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"[:300]


def shown(value: object) -> str:
    """`value` as text of bounded length, for messages about files that may hold anything."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
