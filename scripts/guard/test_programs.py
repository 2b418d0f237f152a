"""Runs the programs of docs/programs and service/testkit/examples/guarded.rs, each with a role that may only guard, directly and through PgBouncer in transaction mode.

CLIENT_BINARY and CLIENT_POSTGRES name the node's binary and the Postgres. PROGRAM_NODE_MODULES, PROGRAM_JDBC and PROGRAM_RUST name what a
program needs: a folder with the packages, the driver's jar, and the built example. A program without it is skipped.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import psycopg

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Java compiles its program first, which takes a minute on a machine that is busy with ten times its work.
PATIENCE = 300
GUARDING = "application_name like 'guarded%'"


def until(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="latchgate-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        # PgBouncer runs as another user.
        os.chmod(cls.folder, 0o755)
        server = psycopg.conninfo.conninfo_to_dict(os.environ["CLIENT_POSTGRES"])
        cls.port = int(server["port"])
        with psycopg.connect(os.environ["CLIENT_POSTGRES"], autocommit=True) as admin:
            admin.execute("create database programs")
        owner = f"host=127.0.0.1 port={cls.port} user={server['user']} dbname=programs"
        cls.owner, cls.blocker = (psycopg.connect(owner, autocommit=True) for _ in range(2))
        cls.addClassCleanup(cls.owner.close)
        cls.addClassCleanup(cls.blocker.close)
        cls.start_node(f"postgres://{server['user']}@127.0.0.1:{cls.port}/programs")
        cls.owner.execute("create table accounts (id int primary key, balance numeric not null)")
        cls.owner.execute("create role program login in role latchgate_guard; grant select, update on accounts to program")
        cls.start_pgbouncer()

    @classmethod
    def spawn(cls, name, command, **options):
        log = open(os.path.join(cls.folder, name), "wb")
        cls.addClassCleanup(log.close)
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stderr=log, **options)
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.kill)
        return process

    @classmethod
    def start_node(cls, locks):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LATCHGATE_")}
        command = ["--", os.environ["CLIENT_BINARY"], "serve", "--listen", "127.0.0.1:0", "--locks", locks]
        node = cls.spawn("node", command, env=clean, cwd=cls.folder, stdout=subprocess.PIPE)
        cls.addClassCleanup(node.stdout.close)
        cls.node = node.stdout.readline().decode().split()[-1]

    @classmethod
    def start_pgbouncer(cls):
        cls.bouncer = free_port()
        path = os.path.join(cls.folder, "pgbouncer.ini")
        with open(path, "w") as config:
            config.write(
                f"[databases]\n* = host=127.0.0.1 port={cls.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
                f"listen_port = {cls.bouncer}\nunix_socket_dir =\nauth_type = trust\nauth_file = {cls.folder}/users\n"
                "pool_mode = transaction\nignore_startup_parameters = extra_float_digits\n"
            )
        with open(os.path.join(cls.folder, "users"), "w") as users:
            users.write('"program" ""\n')
        # It refuses to run as root.
        user = ["--reuid", "postgres", "--regid", "postgres", "--init-groups"] if os.getuid() == 0 else []
        binary = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
        cls.spawn("pgbouncer", [*user, "--", binary, path], stdout=subprocess.DEVNULL)
        until("PgBouncer answers", lambda: answers(cls.bouncer))

    def call(self, method, path, **body):
        sent = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(f"{self.node}/v1/locks/accounts%2F7{path}", sent, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def balance(self):
        return int(self.owner.execute("select balance from accounts").fetchone()[0])

    def start(self, command, port, **environment):
        name = "guarded"
        environment = {
            **os.environ,
            **environment,
            "LATCHGATE_URL": self.node,
            "DATABASE_URL": f"postgres://program@127.0.0.1:{port}/programs?application_name={name}",
            "JDBC_URL": f"jdbc:postgresql://127.0.0.1:{port}/programs?user=program&prepareThreshold=0&ApplicationName={name}",
        }
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*command, "7", "10"], env=environment, cwd=self.folder, **output)

    def ended(self, process):
        output, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, output

    def is_blocked(self, process):
        blocked = f"select count(*) from pg_stat_activity where {GUARDING} and wait_event_type = 'Lock'"
        return process.poll() is not None or self.owner.execute(blocked).fetchone()[0] > 0

    def works(self, command, takes_lock):
        """`takes_lock`: the program takes the lock itself. Otherwise it gets the id of a lease."""
        for port in (self.port, self.bouncer):
            with self.subTest("directly" if port == self.port else "through PgBouncer"):
                self.owner.execute("delete from accounts; insert into accounts values (7, 50)")
                self.call("DELETE", "")
                under_lock = [] if takes_lock else [os.environ["CLIENT_BINARY"], "lock", "accounts/7", "--"]
                code, output = self.ended(self.start([*under_lock, *command], port))
                self.assertEqual(code, 0, output)
                self.assertEqual(self.balance(), 60)
                self.ends_in_the_middle(command, port, takes_lock)

    def ends_in_the_middle(self, command, port, takes_lock):
        """The row of the account is locked by another session. Meanwhile the lease ends."""
        lease = {} if takes_lock else {"LATCHGATE_LEASE": self.call("POST", "/acquire", ttl_ms=PATIENCE * 1_000)["lease_id"]}
        with self.blocker.transaction():
            self.blocker.execute("select from accounts for update")
            process = self.start(command, port, **lease)
            until("the program waits for the row", lambda: self.is_blocked(process))
            self.call("DELETE", "")
        code, output = self.ended(process)
        self.assertNotEqual(code, 0)
        # A client that renews may notice first that the lease has ended.
        self.assertIn("forced", output)
        self.assertEqual(self.balance(), 60, "the work was rolled back")

    def file(self, name):
        """A copy of a program, beside the packages that it needs."""
        return shutil.copy(os.path.join(TOP, "docs/programs", name), self.folder)

    def needs(self, variable):
        value = os.environ.get(variable)
        return value or self.skipTest(f"{variable} is not set: what the program needs cannot be installed here")

    def test_psycopg(self):
        path = self.file("guarded.py")
        clients = os.path.join(TOP, "service/clients/python")
        self.works(["env", f"PYTHONPATH={clients}", sys.executable, path], True)

    def test_node_postgres(self):
        os.symlink(self.needs("PROGRAM_NODE_MODULES"), os.path.join(self.folder, "node_modules"))
        self.works(["node", self.file("guarded.mjs")], True)

    def test_jdbc(self):
        self.works(["java", "-cp", self.needs("PROGRAM_JDBC"), self.file("Guarded.java")], False)

    def test_sqlx(self):
        self.works([self.needs("PROGRAM_RUST")], False)


if __name__ == "__main__":
    unittest.main()
