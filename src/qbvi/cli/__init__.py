"""The command ``qbvi``: one file per subcommand."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from qbvi._version import __version__
from qbvi.cli import compare, fit, predict, report, reproduce, serve, show
from qbvi.cli.options import Parser
from qbvi.cli.streams import complain, flush_output, silence

__all__ = ["command", "main"]

_COMMANDS = (fit, predict, show, compare, report, serve, reproduce)
_INTERRUPTED = 130  # the exit status of a shell's command that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Examples
    --------
    >>> main(["--version"])
    Traceback (most recent call last):
    ...
    SystemExit: 0
    """
    parser = Parser(
        prog="qbvi",
        description="Posteriors from values of a log-likelihood.",
        epilog="`qbvi COMMAND --help` describes each command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"qbvi {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for each in _COMMANDS:
        each.add_to(commands)
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
        flush_output()
    except KeyboardInterrupt as interruption:
        complain(f"qbvi {args.command}: interrupted ({str(interruption) or 'Ctrl-C'})")
        return _INTERRUPTED
    except OSError as error:  # commands report all others themselves
        complain(f"qbvi {args.command}: the output cannot be written ({error})")
        silence(sys.stdout)
        return 1
    return status


def command() -> None:
    """Run one command as the whole of a process, and end the process with its status."""
    try:
        status = main()
    except KeyboardInterrupt:  # a second one, while the first was reported
        status = _INTERRUPTED
    # All is said and saved: from here on a signal ends the process, and no error comes from the end
    # of Python itself.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)
