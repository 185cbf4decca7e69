"""The typer application: its verbs, the options that stand before a verb, and how it is run."""

import sys
from typing import Annotated

import typer

from .. import __version__
from ..ir import switches
from . import console
from .cache_verbs import list_models, prune_cache
from .chat import chat
from .chat import run as run_model
from .compile import compile_model
from .demo import demo
from .doctor import doctor
from .generate import generate
from .inspect import inspect
from .opt import opt
from .tune_verb import tune
from .verify_model import verify

VERBS = {
    "generate": generate,
    "run": run_model,
    "chat": chat,
    "compile": compile_model,
    "inspect": inspect,
    "list": list_models,
    "prune": prune_cache,
    "opt": opt,
    "verify": verify,
    "tune": tune,
    "doctor": doctor,
    "demo": demo,
}

app = typer.Typer(
    name="tilewright",
    help="Compile neural networks into programs of generated kernels, and run them.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tilewright {__version__}")
        raise typer.Exit


@app.callback()
@console.verb
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand after the verb as well.")
    ] = False,
) -> None:
    """Set what holds for every verb."""
    switches.check()
    console.set_debug(debug or switches.get("debug") == "1")


for name, function in VERBS.items():
    app.command(name)(console.verb(function))


def run(argv: list[str] | None = None) -> None:
    """Run the command line on `argv` (default: the process's) and exit with its code."""
    console.prepare_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    # `--debug` is thought of once something has failed, so it is taken at the end of a line too.
    before_dashes = args.index("--") if "--" in args else len(args)
    if "--debug" in args[:before_dashes]:
        args.remove("--debug")
        args.insert(0, "--debug")
    app(args, prog_name="tilewright")
