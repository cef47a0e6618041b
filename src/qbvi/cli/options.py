"""Option values, checked as they are parsed; an error is one line, before any work starts."""

from __future__ import annotations

import argparse
import math
from typing import NoReturn

__all__ = ["Parser", "positive", "seed_number", "separator", "share", "whole"]


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, and where to read more."""

    def error(self, message: str) -> NoReturn:
        """Print the message and end the program."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def positive(text: str) -> float:
    """A positive number.

    Examples
    --------
    >>> positive("0.5")
    0.5
    """
    value = _number(text)
    if not (value > 0 and math.isfinite(value)):
        msg = f"must be a positive number, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return value


def share(text: str) -> float:
    """A number between 0 and 1."""
    value = _number(text)
    if not 0 < value < 1:
        msg = f"must lie between 0 and 1, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return value


def whole(text: str) -> int:
    """A whole number, at least 1."""
    return _whole(text, 1)


def seed_number(text: str) -> int:
    """A whole number, at least 0."""
    return _whole(text, 0)


def separator(text: str) -> str:
    r"""One character; ``\t``, which shells pass as two characters, and ``tab`` mean a tab.

    Examples
    --------
    >>> separator(r"\t")
    '\t'
    """
    mark = {"\\t": "\t", "tab": "\t"}.get(text, text)
    if len(mark) != 1 or mark in '"\r\n':
        msg = f"must be one character, such as ';' or tab, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return mark


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        msg = f"must be a number, got {text!r}"
        raise argparse.ArgumentTypeError(msg) from None


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        msg = f"must be a whole number from {least}, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
