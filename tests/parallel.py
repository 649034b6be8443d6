"""Runs tests in several processes that are forks of the first one: `--workers 4`.

Everything is imported and collected once, before the fork. Workers of pytest-xdist each do it for themselves, which
takes a tenth of the whole run here. A worker gets one test at a time and the one after it, so that the order of
`tests/conftest.py` is the order of the run, and no worker is left with a queue of long tests at the end. It stays with
a file while there is another one for the others, so that the fixtures of a file are set up once.
"""

import atexit
import os
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest._io import TerminalWriter
from _pytest.reports import TestReport

# A worker knows the test that it runs and the next one, which decides what fixtures it may tear down.
_AHEAD = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="number of processes, forked after the collection")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    number = min(session.config.option.workers, len(session.items))
    if not number or session.config.option.collectonly or session.testsfailed:
        return None
    reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
    reporter.showfspath = False  # Tests of several files end in turn.
    _Run(session, number).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


# The process that was started: it hands out the tests, and reports


class _Worker:
    def __init__(self, connection: Connection, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.tests: deque[int] = deque()
        """The test that it runs, and those that it runs next."""
        self.file = ""
        """The file of the last of them."""


class _Run:
    def __init__(self, session: pytest.Session, number: int) -> None:
        self._session = session
        self._config = session.config
        self._number = number
        self._waiting = deque(range(len(session.items)))
        self._files = [str(item.path) for item in session.items]
        self._workers: list[_Worker] = []
        self._started = 0
        self._folder: Path = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self) -> None:
        try:
            for _ in range(self._number):
                self._start_worker()
            for _ in range(_AHEAD):
                for worker in self._workers:
                    self._hand_out(worker)
            while self._workers:
                ready = wait([worker.connection for worker in self._workers])
                for worker in [worker for worker in self._workers if worker.connection in ready]:
                    self._receive(worker)
        finally:
            for worker in self._workers:  # After an interrupt: a worker ends when it finds nobody to report to.
                worker.connection.close()
                os.waitpid(worker.pid, 0)

    def _start_worker(self) -> _Worker:
        ours, theirs = Pipe()
        self._started += 1
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Libraries may have started threads when they were imported; none of ours runs yet.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            for connection in (ours, *(worker.connection for worker in self._workers)):
                connection.close()
            _work(self._session, theirs, self._folder / f"worker-{self._started}")
        theirs.close()
        self._workers.append(_Worker(ours, pid))
        return self._workers[-1]

    def _hand_out(self, worker: _Worker) -> None:
        """Give the worker its next test, or None when there is none."""
        if self._session.shouldfail or self._session.shouldstop:
            self._waiting.clear()
        index = self._next(worker) if self._waiting else None
        with suppress(OSError):  # A worker that has crashed is found out when its reports are received.
            worker.connection.send(index)
        if index is not None:
            self._waiting.remove(index)
            worker.tests.append(index)
            worker.file = self._files[index]

    def _next(self, worker: _Worker) -> int:
        """Return a test of the worker's file, or else of a file that no other worker has, or else any."""
        taken = {each.file for each in self._workers}
        tests = chain(
            (index for index in self._waiting if self._files[index] == worker.file),
            (index for index in self._waiting if self._files[index] not in taken),
        )
        return next(tests, self._waiting[0])

    def _receive(self, worker: _Worker) -> None:
        try:
            reports, warned = worker.connection.recv()
        except (EOFError, ConnectionError):
            self._bury(worker)
            return
        self._report(worker.tests.popleft(), reports, warned)
        self._hand_out(worker)

    def _report(self, index: int, reports: list[dict[str, Any]], warned: list[tuple[Any, ...]]) -> None:
        item, hook = self._session.items[index], self._config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in reports:
            report = hook.pytest_report_from_serializable(config=self._config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        for text, category, filename, line, *arguments in warned:
            kind = type(category, (Warning,), {})
            message = warnings.WarningMessage(kind(text), kind, filename, line)
            when, nodeid, location = arguments
            hook.pytest_warning_recorded.call_historic(
                kwargs={"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
            )

    def _bury(self, worker: _Worker) -> None:
        """Report the test in which a worker ended, and start another one for those it had left."""
        self._workers.remove(worker)
        worker.connection.close()
        _, status = os.waitpid(worker.pid, 0)
        if not worker.tests:
            return
        index = worker.tests.popleft()
        item = self._session.items[index]
        text = f"The process that ran this test ended with {_ending(status)}; its output is above."
        report = TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._report(index, [data], [])
        self._waiting.extendleft(reversed(worker.tests))
        if self._waiting:
            successor = self._start_worker()
            for _ in range(_AHEAD):
                self._hand_out(successor)


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit status {code}"


# A worker


def _work(session: pytest.Session, connection: Connection, folder: Path) -> None:
    """Run the tests whose numbers arrive, and end the process."""
    atexit._clear()  # What is registered so far is for the first process to do.
    status = 1
    try:
        with _as_worker(session.config, folder) as reporter:
            _run_tests(session, connection, reporter)
        status = 0
    except (EOFError, ConnectionError, KeyboardInterrupt):
        pass  # The first process was interrupted.
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_tests(session: pytest.Session, connection: Connection, reporter: "_Reporter") -> None:
    index = connection.recv()
    while index is not None:
        following = connection.recv()
        item, after = session.items[index], None if following is None else session.items[following]
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        connection.send(reporter.take())
        index = following


@contextmanager
def _as_worker(config: pytest.Config, folder: Path) -> Iterator["_Reporter"]:
    plugins = config.pluginmanager
    # Files for output of its own, in place of those that it shares with all others. They stay open: libraries may have
    # kept `sys.stderr` when they were imported.
    capture: Any = plugins.getplugin("capturemanager")
    for output in (capture._global_capturing.out, capture._global_capturing.err):
        if output is not None:
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), output.tmpfile.fileno())
    folder.mkdir()
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    # Only the first process writes to the terminal. pytest-timeout writes the stacks of a test that hangs.
    plugins.unregister(name="terminalreporter")
    plugins.register(SimpleNamespace(_tw=TerminalWriter(sys.stderr)), "terminalreporter")
    reporter = _Reporter(config)
    plugins.register(reporter)
    yield reporter


class _Reporter:
    """Collects the reports and warnings of one test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: list[dict[str, Any]] = []
        self._warnings: list[tuple[Any, ...]] = []

    def pytest_runtest_logreport(self, report: TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        kind, where = warning_message.category.__name__, (warning_message.filename, warning_message.lineno)
        self._warnings.append((str(warning_message.message), kind, *where, when, nodeid, location))

    def take(self) -> tuple[list[dict[str, Any]], list[tuple[Any, ...]]]:
        taken = self._reports, self._warnings
        self._reports, self._warnings = [], []
        return taken
