"""``python -m qbvi``: the command ``qbvi``."""

from qbvi.cli import command

if __name__ == "__main__":
    command()
