"""`hoptell listen`: prints what arrives, loses nothing, says nothing else."""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.inbox import NAME, ids, made, message

from hoptell.inbox import Inbox

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def inbox(home: Path) -> Inbox:
    return made(home)


@pytest.fixture
def environ(home: Path) -> dict[str, str]:
    return {**os.environ, "HOPTELL_HOME": str(home)}


@pytest.fixture
def start(environ: dict[str, str]) -> Iterator[Start]:
    """Starts `hoptell` with the arguments given."""
    children: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        given: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "env": environ,
        }
        command = [sys.executable, "-m", "hoptell", *arguments]
        children.append(subprocess.Popen(command, **{**given, **options}))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate()


def listen(start: Start, *arguments: str, **options: Any) -> tuple[int, str, str]:
    """Run `hoptell listen` to its end: exit code, standard output and error."""
    child = start("listen", *arguments, **options)
    output, errors = child.communicate(timeout=20)
    return child.returncode, (output or b"").decode(), (errors or b"").decode()


def waiting(child: "subprocess.Popen[bytes]") -> None:
    """Until it says that it waits."""
    assert child.stderr
    assert child.stderr.readline() == b"hoptell: waiting for messages to alice\n"


@pytest.mark.parametrize("seconds", ["0.2", "1s"])
def test_seconds_may_have_a_fraction_or_a_unit(inbox: Inbox, start: Start, seconds: str) -> None:
    assert listen(start, NAME, seconds)[0] == 3


def test_it_prints_what_is_there_and_removes_it(inbox: Inbox, start: Start) -> None:
    inbox.store(message("1", text="first: é ✅"))
    inbox.store(message("2", text="second"))
    code, output, errors = listen(start, NAME, "0")
    assert (code, errors) == (0, "")
    assert output.index("first: é ✅") < output.index("second")
    assert output.startswith("[hoptell message ")
    assert output.endswith(" ends]\n")
    assert "HOPTELL_NAME=alice hoptell send --reply-to reference-of-1 bob TEXT)" in output
    assert ids(inbox) == []
    assert listen(start, NAME, "0")[0] == 3


def test_it_waits_and_prints_only_messages_to_standard_output(inbox: Inbox, start: Start) -> None:
    """Whatever happens while it waits, output means that a message came."""
    child = start("listen", NAME)
    waiting(child)
    inbox.store(message())
    output, errors = child.communicate(timeout=20)
    assert (child.returncode, errors) == (0, b"")
    lines = output.decode().splitlines()
    assert lines[0].startswith("[hoptell message ")
    assert lines[-2] == "hello"
    assert lines[-1].startswith("[hoptell message ")


@pytest.mark.parametrize("seconds", ["0", "0.2"])
def test_a_mistyped_name_leaves_nothing_behind(start: Start, home: Path, seconds: str) -> None:
    assert listen(start, "alcie", seconds)[0] == 3
    assert list((home / "inbox").iterdir()) == []


def test_it_may_listen_before_the_inbox_is_there(start: Start, home: Path) -> None:
    child = start("listen", NAME)
    waiting(child)
    Inbox(home, NAME).store(message())
    output, _ = child.communicate(timeout=20)
    assert child.returncode == 0
    assert b"\nhello\n" in output


def test_nothing_in_time_is_exit_code_3_and_no_output(start: Start) -> None:
    started = time.monotonic()
    code, output, errors = listen(start, NAME, "0.3")
    assert (code, output) == (3, "")
    assert errors == (
        "hoptell: waiting for messages to alice\nhoptell: nothing arrived for alice in time\n"
    )
    assert time.monotonic() - started > 0.3
    assert listen(start, NAME, "0") == (3, "", "hoptell: nothing arrived for alice in time\n")


def test_a_long_message_comes_in_parts_one_each_time(inbox: Inbox, start: Start) -> None:
    text = "".join(f"line {number}\n" for number in range(4_000))
    inbox.store(message("1", text=text))
    inbox.store(message("2", text="the other"))
    read = ""
    for number in (1, 2, 3):
        code, output, _ = listen(start, NAME, "0")
        assert code == 0
        assert len(output) <= 20_000
        assert output.startswith(f"[hoptell message part {number} of 3 ")
        read += output.split("\n\n", 1)[1].split("\n[hoptell message part", 1)[0]
        more = "the rest of this message and 1 more message wait: run hoptell listen alice]"
        assert (more in output) is (number < 3)
    assert read == text
    assert "\nthe other\n" in output
    assert ids(inbox) == []


def test_a_reader_that_is_gone_leaves_the_message(inbox: Inbox, start: Start) -> None:
    reader, writer = os.pipe()
    child = start("listen", NAME, stdout=writer)
    os.close(writer)
    os.close(reader)
    waiting(child)
    inbox.store(message())
    _, errors = child.communicate(timeout=20)
    assert (child.returncode, errors) == (1, b"")
    assert ids(inbox) == ["delivery-1"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_leaves_the_message(inbox: Inbox, start: Start) -> None:
    inbox.store(message())
    with open("/dev/full", "wb") as full:
        code, _, errors = listen(start, NAME, "0", stdout=full)
    assert code != 0
    assert errors.splitlines()[0] == "hoptell: No space left on device"
    assert "Traceback" not in errors
    assert ids(inbox) == ["delivery-1"]


def test_a_closed_standard_output_leaves_the_message(
    inbox: Inbox, start: Start, environ: dict[str, str]
) -> None:
    inbox.store(message())
    command = [sys.executable, "-m", "hoptell", "listen", NAME, "0"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], env=environ, stderr=subprocess.PIPE
    )
    assert (done.returncode, done.stderr) == (1, b"hoptell: Bad file descriptor\n")
    assert ids(inbox) == ["delivery-1"]


@pytest.mark.parametrize(
    ("step", "is_there"),
    [("prepare", True), ("begin", True), ("end", False), ("settle", False)],
    ids=str,
)
def test_what_was_printed_when_it_was_killed_is_gone_and_what_was_not_is_there(
    inbox: Inbox, environ: dict[str, str], step: str, is_there: bool
) -> None:
    where = "listen" if step == "settle" else "departure.Departure"
    code = (
        "import os, signal\n"
        "from hoptell import departure\n"
        "from hoptell.cli import listen\n"
        f"{where}.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"listen.listen_command([{NAME!r}, '0'])\n"
    )
    inbox.store(message("1", text="x" * 15_000))
    inbox.store(message("2", text="y" * 15_000))
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.endswith(b"\n") is (not is_there)
    assert ids(inbox) == (["1", "2"] if is_there else ["2"])


def test_output_that_does_not_block_is_written_whole(inbox: Inbox, start: Start) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text = "x" * 4_000 + "\U0001f600" * 15_000
    inbox.store(message("1", text=text))
    inbox.store(message("2"))
    child = start("listen", NAME, "0", stdout=writer)
    os.close(writer)
    waited = select.select([reader], [], [], 20)[0]
    assert waited, "it began"
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.5)  # more than a pipe holds
    with open(reader, "rb") as stream:
        output = stream.read().decode()
    assert child.wait(10) == 0
    assert output.endswith("]\n") and "\U0001f600" * 10_000 in output


def _blocked(inbox: Inbox, start: Start) -> "subprocess.Popen[bytes]":
    """One that has claimed a message, and whose reader does not read it."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, 1031, 4096)  # F_SETPIPE_SZ
    inbox.store(message("1", text="x" * 15_000))
    inbox.store(message("2"))
    child = start("listen", NAME, stdout=writer)
    os.close(writer)
    os.read(reader, 1)  # it has begun to print
    child.reader = reader  # type: ignore[attr-defined]
    assert ids(inbox) == []
    return child


@pytest.mark.skipif(sys.platform != "linux", reason="makes a pipe small")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_was_not_wholly_printed_when_it_was_ended_is_there_again(
    inbox: Inbox, start: Start, number: signal.Signals
) -> None:
    child = _blocked(inbox, start)
    child.send_signal(number)
    code = child.wait(10)
    os.close(child.reader)  # type: ignore[attr-defined]
    assert code == (-9 if number == signal.SIGKILL else 128 + number)
    assert child.stderr and child.stderr.read() == b""
    if number != signal.SIGKILL:  # at once, and not when somebody finds the process gone
        assert list((inbox.folder / "claimed").iterdir()) == []
    assert ids(inbox) == ["1", "2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_leaves_cleanly_on_a_signal(inbox: Inbox, start: Start, number: int) -> None:
    child = start("listen", NAME)
    waiting(child)
    child.send_signal(number)
    output, errors = child.communicate(timeout=10)
    assert (child.returncode, output, errors) == (128 + number, b"", b"")


def test_a_signal_that_comes_while_it_arms_its_watch_ends_it(
    inbox: Inbox, environ: dict[str, str]
) -> None:
    code = (
        "import os, signal\n"
        "from watchdog.observers import Observer\n"
        "from hoptell.cli.listen import listen_command\n"
        "Observer.start = lambda observer: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"listen_command([{NAME!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ, timeout=20)
    assert done.returncode == 128 + signal.SIGTERM


def test_two_listeners_get_a_message_once(inbox: Inbox, start: Start) -> None:
    children = [start("listen", NAME, "1.5") for _ in range(2)]
    for child in children:
        waiting(child)
    inbox.store(message())
    done = [(child.communicate(timeout=20)[0], child.returncode) for child in children]
    assert sorted(code for _, code in done) == [0, 3]
    assert sum(output.count(b"\nhello\n") for output, _ in done) == 1


def test_a_file_that_cannot_be_read_is_reported_beside_the_messages(
    inbox: Inbox, start: Start
) -> None:
    (inbox.folder / "0.json").write_text("{")
    code, output, errors = listen(start, NAME, "0.2")
    assert (code, output) == (3, "")
    assert "the inbox file '0.json' cannot be read (it is not a message in JSON)" in errors
    inbox.store(message())
    code, output, errors = listen(start, NAME, "0")
    assert (code, errors) == (0, "")
    assert output.endswith(
        "[hoptell: 1 file in this inbox could not be read: tell your user to look into its"
        " folder bad/]\n"
    )


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1"])
def test_output_is_utf_8_whatever_the_locale(
    inbox: Inbox, start: Start, environ: dict[str, str], locale: str
) -> None:
    inbox.store(message(text="é ✅ 日本"))
    environ |= {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}
    code, output, _ = listen(start, NAME, "0")
    assert code == 0
    assert "\né ✅ 日本\n" in output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["a/b"], 1, "hoptell: 'a/b' is not a name: use 1 to 64 letters"),
        ([NAME, "nan"], 2, "a number of seconds is 0 or more"),
        ([NAME, "inf"], 2, "a number of seconds is 0 or more"),
        (["--", NAME, "-1"], 2, "a number of seconds is 0 or more"),
        ([NAME, "soon"], 2, "is not a duration"),
        ([], 2, "Missing argument 'NAME'"),
    ],
)
def test_wrong_arguments_are_explained(
    start: Start, arguments: list[str], code: int, words: str
) -> None:
    found, output, errors = listen(start, *arguments)
    assert (found, output) == (code, "")
    assert words in errors
    assert "Traceback" not in errors


def test_an_unsafe_folder_is_explained(start: Start, home: Path, tmp_path: Path) -> None:
    home.symlink_to(tmp_path)
    code, output, errors = listen(start, NAME, "0")
    assert (code, output) == (1, "")
    assert re.fullmatch(r"hoptell: .* is a symbolic link: put a folder there .*\n", errors)


def test_it_loads_neither_the_mcp_nor_the_relay_library(
    inbox: Inbox, environ: dict[str, str]
) -> None:
    inbox.store(message())
    script = (
        "import sys\n"
        "from hoptell.cli.listen import listen_command\n"
        f"listen_command([{NAME!r}, '0'], standalone_mode=False)\n"
        "heavy = {'mcp', 'websockets', 'asyncio', 'pydantic', 'libtmux', 'watchdog', 'psutil'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=20
    )
    assert done.stderr == "[]\n"
    assert "\nhello\n" in done.stdout
