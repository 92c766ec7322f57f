"""guard_child and install_stop_handler in real processes."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

from service.settings import SUPERVISOR_PID, child_environment, supervisor_pid

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def python(code: str, pid: int | None = None, **options: object) -> subprocess.Popen[str]:
    environment = child_environment(os.getpid() if pid is None else pid, {**os.environ, "PYTHONPATH": str(ROOT)})
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_a_child_whose_parent_died_before_the_guard_ends_at_once():
    child = python("from service.process import guard_child; guard_child(); print('alive')", pid=2**22 + 1)
    output, _ = child.communicate()
    assert (child.returncode, output) == (-signal.SIGTERM, "")


def test_a_guarded_child_of_a_living_parent_goes_on():
    child = python("from service.process import guard_child; guard_child(); print('alive')")
    assert child.communicate()[0] == "alive\n"
    assert child.returncode == 0


def test_without_the_kernels_help_a_thread_notices_the_parents_death():
    inner = (
        "import signal, threading; import service.process as p; p._kernel_guard = lambda ending: False; "
        "p.POLL_S = 0.01; "
        "stop = threading.Event(); p.install_stop_handler(stop.set, 60); p.guard_child(); "
        "print('up', flush=True); stop.wait(); print('told', flush=True)"
    )
    middle = python(
        f"""
        import os, subprocess, sys
        os.environ[{SUPERVISOR_PID!r}] = str(os.getpid())
        child = subprocess.Popen([sys.executable, "-c", {inner!r}])
        sys.stdin.read()
        """,
        stdin=subprocess.PIPE,
    )
    assert middle.stdout is not None
    assert middle.stdout.readline() == "up\n"
    middle.kill()
    assert middle.stdout.readline() == "told\n"
    middle.communicate()


def test_many_stop_signals_call_back_once_even_while_the_main_thread_holds_the_lock_that_the_callback_takes():
    child = python(
        """
        import os, signal, threading
        from service.process import install_stop_handler
        lock, calls, called = threading.Lock(), [], threading.Event()
        def callback():
            with lock:
                calls.append(1)
            called.set()
        install_stop_handler(callback, 60)
        with lock:
            for _ in range(50):
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGINT)
        called.wait()
        print(len(calls))
        """
    )
    output, errors = child.communicate()
    assert (child.returncode, output, errors) == (0, "1\n", "")


def test_a_process_that_does_not_stop_ends_at_the_deadline_even_inside_a_long_c_call():
    child = python(
        """
        import hashlib
        from service.process import install_stop_handler
        install_stop_handler(lambda: None, 0.05)
        print("up", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # many minutes without a bytecode in between
        """
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate()
    assert child.returncode == 70
    assert f"pid {child.pid} did not stop within 0.05 s" in errors


def test_the_supervisors_pid_is_read_back_and_anything_else_is_ignored():
    assert supervisor_pid(child_environment(4711, {})) == 4711
    assert supervisor_pid({}) is None
    for text in ("", "x", "-1", "1.5", "٣"):
        assert supervisor_pid({SUPERVISOR_PID: text}) is None


def test_put_back_handlers_are_the_former_ones_and_a_later_signal_does_what_it_did_before():
    child = python(
        """
        import os, signal
        from service.process import install_stop_handler
        put_back = install_stop_handler(lambda: print("called", flush=True), 60)
        put_back()
        os.kill(os.getpid(), signal.SIGTERM)
        """
    )
    assert child.communicate() == ("", "")
    assert child.returncode == -signal.SIGTERM


def test_leave_prints_what_was_written_and_waits_for_nothing():
    child = python(
        """
        import atexit, sys, threading
        from service.process import leave
        atexit.register(print, "not reached")
        threading.Thread(target=threading.Event().wait).start()
        print("written")
        leave(7)
        """
    )
    assert child.communicate() == ("written\n", "")
    assert child.returncode == 7
