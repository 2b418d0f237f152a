"""Private servers on free ports, with throw-away data on this disk. They end with the program."""

import atexit
import glob
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence

TOP = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TOP / "target")).resolve()


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr)


def ensure_packages(*tools: str) -> None:
    """Installs the packages of those tools that are missing."""
    command = 'source scripts/lib.sh && ensure_packages "$@"'
    subprocess.run(["bash", "-c", command, "-", *tools], cwd=TOP, check=True)


def binaries() -> tuple[str, str]:
    """`latchgate` and `latchgate-bench`: CLUSTER_BINARY and BENCH_BINARY, or built now."""
    given = os.environ.get("CLUSTER_BINARY"), os.environ.get("BENCH_BINARY")
    if not all(given):
        build = ["cargo", "build", "--profile", "dist", "--locked", "-p", "latchgate", "-p", "latchgate-bench"]
        subprocess.run(build, cwd=TOP, check=True)
    names = "latchgate", "latchgate-bench"
    latchgate, bench = (os.path.abspath(path or TARGET / "dist" / name) for path, name in zip(given, names))
    return latchgate, bench


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(url: str) -> Callable[[], bool]:
    def is_ready() -> bool:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)

    return is_ready


def is_open(port: int) -> Callable[[], bool]:
    def is_ready() -> bool:
        socket.create_connection(("127.0.0.1", port), 2).close()
        return True

    return is_ready


class Servers:
    def __init__(self) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="latchgate-bench-"))
        # The user postgres needs access to its own directory below.
        self.dir.chmod(0o711)
        self.started: list[subprocess.Popen[bytes]] = []
        # Each client is a connection: one descriptor in the client and one in the node.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        atexit.register(self.stop)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def stop(self) -> None:
        for process in reversed(self.started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(
        self, name: str, command: Sequence[str], is_ready: Callable[[], bool], user: Sequence[str] = (), key: str = ""
    ) -> int:
        """Returns the process id when the server is ready.

        Linux distributes the processors among sessions before processes (sched_autogroup). Servers in sessions of their own would distort
        the measurement.
        """
        env = os.environ | ({"LATCHGATE_ADMIN_API_KEY": key} if key else {})
        log = self.dir / f"{name}.log"
        with open(log, "ab") as output:
            words = ["setpriv", "--pdeathsig", "KILL", *user, "--", *command]
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
        self.started.append(process)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if is_ready():
                    return process.pid
            except OSError:
                pass
            time.sleep(0.05)
        raise OSError(f"{name} does not get ready:\n" + log.read_text(errors="replace")[-3000:])

    def http(self, name: str, command: Sequence[str], key: str = "") -> tuple[str, int]:
        """A server that takes `--listen`: its URL and process id."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        return url, self.start(name, [*command, "--listen", f"127.0.0.1:{port}"], answers(f"{url}/readyz"), key=key)

    def redis(self, name: str) -> tuple[int, int]:
        """Without persistence: its port and process id."""
        port, data = free_port(), self.dir / name
        data.mkdir()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data), "--save", "", "--appendonly", "no"]
        return port, self.start(name, command, is_open(port))


class Postgres:
    """With `fsync` on."""

    def __init__(self, servers: Servers) -> None:
        # Debian keeps it out of PATH: the newest version.
        debian = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda path: int(path.split("/")[4]))
        initdb = debian[-1] if debian else str(shutil.which("initdb"))
        self.bin = pathlib.Path(initdb).parent
        data = servers.dir / "postgres"
        data.mkdir()
        user: list[str] = []
        if os.getuid() == 0:
            shutil.chown(data, "postgres", "postgres")
            user = ["--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        options = ["--no-sync", "--locale=C", "--encoding=UTF8", "--auth=trust", "--username=postgres", "-D", str(data / "data")]
        words = ["setpriv", *user, "--", initdb, *options] if user else [initdb, *options]
        subprocess.run(words, cwd=data, check=True, stdout=subprocess.DEVNULL)
        self.port = free_port()
        self.url = f"postgres://postgres@127.0.0.1:{self.port}/postgres"
        settings = ["listen_addresses=127.0.0.1", f"unix_socket_directories={data}", "max_connections=400"]
        command = [str(self.bin / "postgres"), "-D", str(data / "data"), "-p", str(self.port)]
        command += [word for setting in settings for word in ("-c", setting)]
        self.pid = servers.start("postgres", command, lambda: self.psql("select 1", is_checked=False) == "1", user)
        # A new server creates and zero-fills each segment of its write-ahead log; a server that has run for a while overwrites old segments.
        # This makes the old segments.
        self.psql("alter system set min_wal_size = '1GB'")
        self.psql("select pg_reload_conf()")
        for _ in range(6):
            self.psql(";".join(["select pg_logical_emit_message(false, 'bench', '')", "select pg_switch_wal()"] * 10))
        self.psql("checkpoint")

    def psql(self, *statements: str, is_checked: bool = True) -> str:
        command = [str(self.bin / "psql"), "-X", "-q", "-tA", "-v", "ON_ERROR_STOP=1", self.url]
        for statement in statements:
            # Each statement is a transaction of its own: several in one `-c` would be one.
            command += [word for part in statement.split(";") for word in ("-c", part)]
        ended = subprocess.run(command, check=is_checked, stdout=subprocess.PIPE, stderr=None if is_checked else subprocess.DEVNULL)
        return ended.stdout.decode().strip()

    def database(self, name: str) -> str:
        """The URL of a new database."""
        self.psql(f'create database "{name}"')
        return f"{self.url.rsplit('/', 1)[0]}/{name}"
