"""``pd COMMAND``: reads the command line, and says what is wrong with it or with the files that it names."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from cli.errors import UnreadableError

UNREADABLE = 2
"""exit code of every command for what it can't read or write"""
INTERRUPTED = 130
"""exit code after Ctrl-C, as shells have it"""
COMMANDS = {
    "check": "say what is wrong with stack files",
    "preflight": "say what the cluster lacks for a stack, before anything is changed",
    "diff": "say what `pulumi up` would do to the pods",
    "drift": "say what in the cluster is not as declared, and who made it so",
    "rollout": "take a candidate a step further, promote or abort it",
    "import": "make a stack file of manifests that run already, and say what is wrong in them",
    "render": "write a stack's objects as plain YAML",
    "recover": "bring a stack back after a `pulumi up` that was killed",
}
"""name -> what it does; each has a module of its own, of which only that of the command is imported"""


def main() -> int:
    """Run one command; its exit code."""
    # A name in a stack file may hold characters that a terminal's encoding has not.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # both are files here
    try:
        arguments = _parser().parse_args()
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except UnreadableError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNREADABLE
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"error: the output can't be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in it is not tried again at the end
        return UNREADABLE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pd", description="Prefill/decode deployments on the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    given = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == given:
            import_module(f"cli.{name}").define(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
