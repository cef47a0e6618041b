"""The command as the whole of a process: its exit status, and signals after its last word."""

import signal

import pytest

from qbvi import cli


@pytest.fixture
def own_signal():
    """The handler of Ctrl-C that Python begins with; afterwards the one before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_process_has_the_status_of_the_command(monkeypatch, own_signal, status):
    monkeypatch.setattr(cli, "main", lambda: status)
    with pytest.raises(SystemExit) as end:
        cli.command()
    assert end.value.code == status


def test_a_signal_after_the_last_word_ends_the_process(monkeypatch, own_signal):
    monkeypatch.setattr(cli, "main", lambda: 0)
    with pytest.raises(SystemExit):
        cli.command()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_a_signal_that_was_ignored_stays_so(monkeypatch, own_signal):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(cli, "main", lambda: 0)
    with pytest.raises(SystemExit):
        cli.command()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_second_interruption_is_a_status_and_no_traceback(monkeypatch, own_signal):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    with pytest.raises(SystemExit) as end:
        cli.command()
    assert end.value.code == 130
