"""Latchgate beside other lock services: the same connections, keys and durations, in rounds, so that other load on the machine affects
all alike. Prints tables in Markdown, and the targets with what was reached. Each service runs privately; one that cannot be had is skipped by
name. CLUSTER_BINARY and BENCH_BINARY are a `latchgate` and a `latchgate-bench` to use instead of building them."""

import argparse
import base64
import glob
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from servers import TARGET, TOP, Postgres, Servers, answers, binaries, ensure_packages, free_port, is_open, say  # noqa: E402

Report = dict[str, Any]
Value = Callable[[Report], float | None]
# A side, a workload and how many connections.
Which = tuple[str, str, int]

CONNECTIONS = 128
FEWER_CONNECTIONS = 32
WAITERS = [16, 128, 1_000, 10_000]
# Threads of Curator's client.
THREADS_MAX = 128
PARTS = ["pairs", "fewer", "one", "hot", "gate", "idle", "renewals", "held"]
TITLES = {
    "repeated": "Acquire and release, each connection one key",
    "fresh": "Acquire and release, a new key each time",
    "gate": "Pre and post of the gate, fast",
    "gate-durable": "Pre and post of the gate, durable",
    "hot": "One hot key",
    "idle": "Acquires beside clients that wait",
    "renewals": "Renewals of held leases",
    "held": "Acquires beside leases that are held",
}
# `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`
DELETE_IF_EQUAL = (
    "if%20redis.call(%22get%22%2CKEYS%5B1%5D)%3D%3DARGV%5B1%5D%20then%20return%20redis.call(%22del%22%2C"
    "KEYS%5B1%5D)%20else%20return%200%20end"
)


def calls(protocol: str) -> list[str]:
    """What acquires and releases a lock of another service over HTTP, as arguments of `latchgate-bench pairs`."""
    if protocol == "etcd":
        # The gateway wants names in base 64. The digits in the place of {key} are such text.
        name = base64.b64encode(f"bench---{secrets.token_hex(8)}".encode()).decode() + "{key}"
        acquire = ["/v3/lock/lock", '{"name":"%s","lease":"1{worker}"}' % name]
        release = ["/v3/lock/unlock", '{"key":"{.key}"}']
    elif protocol == "webdis":
        lock = "bench-{run}-{key}/{worker}-{sequence}"
        acquire = ["/", f"SET/{lock}/NX/PX/30000", '{"SET":[true,"OK"]}']
        release = ["/", f"EVAL/{DELETE_IF_EQUAL}/1/{lock}", '{"EVAL":1}']
    else:
        acquire = ["/locks/bench-{run}-{key}/acquire", '{"ttl_seconds":30}']
        release = ["/locks/bench-{run}-{key}/release", '{"lease_id":"{.lease_id}"}']
    return ["--acquire", *acquire, "--release", *release]


class Side:
    """A service to measure. The URL of curator is its client's command."""

    def __init__(self, args: argparse.Namespace, name: str, protocol: str, url: str, **options: str) -> None:
        self.args, self.name, self.protocol, self.options = args, name, protocol, options
        command = url.split()
        self.client = ["--url", command[0]]
        names = {"key": "--api-key", "node": "--node-pid", "store": "--store-pid"}
        for option, value in options.items():
            self.client += [names[option], value]
        if self.protocol == "curator":
            # For the whole run, so that its virtual machine is warm.
            self.curator = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.protocol == "etcd":
            # Each connection has one lease for the whole run, as a session of etcd's own clients has.
            for number in range(max(args.connections, FEWER_CONNECTIONS)):
                body = json.dumps({"TTL": "86400", "ID": f"1{number}"}).encode()
                urllib.request.urlopen(f"{command[0]}/v3/lease/grant", body).close()

    def jobs(self) -> list[tuple[str, str, int]]:
        """What is measured: the part, the workload and the connections."""
        most = self.args.connections
        if self.name == "gate":
            counts = (most, FEWER_CONNECTIONS)
            return [("gate", workload, count) for count in counts for workload in ("gate", "gate-durable")]
        jobs = [("pairs", "repeated", most), ("pairs", "fresh", most)]
        if self.name in ("floor", "sqlite", "sqlite-no-history", "etcd", "webdis"):
            jobs.append(("fewer", "repeated", FEWER_CONNECTIONS))
        if self.name in ("floor", "postgres", "sqlite", "redis", "etcd"):
            jobs.append(("one", "repeated", 1))
        if self.name in ("postgres", "curator"):
            jobs += [("hot", "hot", count) for count in WAITERS if self.name == "postgres" or count <= THREADS_MAX]
        if self.name == "postgres":
            jobs += [(part, part, most) for part in ("idle", "renewals", "held")]
        return jobs

    def measure(self, workload: str, connections: int) -> Report:
        args = self.args
        if self.protocol == "curator":
            return self.measure_curator(workload, connections)
        load = [*self.client, "--connections", str(connections)]
        if self.protocol in ("floor", "latchgate"):
            leases = args.held if workload == "held" else args.leases
            load += ["--duration", f"{args.seconds}s", "--warmup", f"{args.warmup_seconds}s", "--json"]
            command = [args.bench, "load", workload, *load, "--polls", str(args.polls), "--leases", str(leases)]
        else:
            load += ["--duration", str(args.seconds), "--warmup", str(args.warmup_seconds)]
            command = [args.bench, "pairs", *load, *(["--fresh"] if workload == "fresh" else []), *calls(self.protocol)]
        # It fails if a request has failed; the report says which.
        ended = subprocess.run(command, capture_output=True, text=True)
        if not ended.stdout:
            raise OSError(ended.stderr.strip())
        report: Report = json.loads(ended.stdout)
        return report

    def measure_curator(self, workload: str, connections: int) -> Report:
        assert self.curator.stdin and self.curator.stdout
        args = self.args
        self.curator.stdin.write(f"{workload} {connections} {args.warmup_seconds}000 {args.seconds}000\n")
        self.curator.stdin.flush()
        time.sleep(args.warmup_seconds)
        before = cpu_us(self.options["node"])
        time.sleep(args.seconds)
        cpu = cpu_us(self.options["node"]) - before
        answer = json.loads(self.curator.stdout.readline())
        operations = answer["operations"]
        return {
            "operations": operations,
            "operations_per_second": operations / args.seconds,
            "latency_us": {part: dict(zip(("mean", "p50", "p99"), answer[part])) for part in ("acquire", "release")},
            "node_cpu_us": cpu / operations if operations else None,
            "also": {"grants_min": answer["least"], "grants_max": answer["most"]},
            "errors": {"failed": answer["failures"]} if answer["failures"] else {},
        }


# As deploy/nginx.conf by default: the calls for a key go to one node.
NGINX = """worker_processes 2;
daemon off;
pid DIR/nginx.pid;
error_log DIR/nginx-error.log;
worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path DIR/nginx-body; proxy_temp_path DIR/nginx-proxy; fastcgi_temp_path DIR/nginx-fastcgi;
    uwsgi_temp_path DIR/nginx-uwsgi; scgi_temp_path DIR/nginx-scgi;
    keepalive_requests 1000000;
    map $uri $lock_key {
        "~^/v1/locks/(?<before_the_verb>.+)/(?:acquire|renew|release)$" $before_the_verb;
        default $request_id;
    }
    upstream nodes { hash $lock_key consistent; SERVERS keepalive 256; keepalive_requests 1000000; }
    server {
        listen 127.0.0.1:PORT;
        location / { proxy_pass http://nodes; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host; }
    }
}
"""
# The libraries of ZooKeeper and Curator, where Debian keeps them.
JARS = "curator-recipes curator-framework curator-client zookeeper zookeeper-jute guava slf4j-api slf4j-nop metrics-core snappy-java commons-cli log4j-1.2"


class Sides:
    """Starts the services."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.servers = args, Servers()
        self.postgres = Postgres(self.servers)
        self.key = subprocess.run([args.latchgate, "api-key", "generate"], check=True, capture_output=True, text=True).stdout.strip()
        self.all: dict[str, Callable[[str], Side]] = {
            "floor": self.floor,
            "postgres": self.on_postgres,
            "postgres-no-history": self.on_postgres,
            "sqlite": self.on_sqlite,
            "sqlite-no-history": self.on_sqlite,
            "redis": self.on_redis,
            "redis-no-history": self.on_redis,
            "gate": self.gate,
            "postgres-0ms": self.delayed,
            "postgres-1ms": self.delayed,
            "three-nodes": self.three_nodes,
            "etcd": self.etcd,
            "webdis": self.webdis,
            "curator": self.curator,
            "octostore": self.octostore,
        }

    def start(self) -> list[Side]:
        started = []
        for name in self.args.sides or self.all:
            try:
                started.append(self.all[name](name))
            except (OSError, subprocess.CalledProcessError) as error:
                say(f"skipped: {name}, because {error}")
        return started

    def node(self, name: str, *options: str) -> tuple[str, int]:
        """As a user runs it, with an API key."""
        history = ["--history-retention", "0"] if name.endswith("-no-history") else []
        return self.servers.http(f"node-of-{name}", [self.args.latchgate, "serve", *options, *history], key=self.key)

    def side(self, name: str, node: tuple[str, int], *stores: int) -> Side:
        store = {"store": ",".join(map(str, stores))} if stores else {}
        return Side(self.args, name, "latchgate", node[0], node=str(node[1]), key=self.key, **store)

    def floor(self, name: str) -> Side:
        url, pid = self.servers.http(name, [self.args.bench, "floor-server"])
        return Side(self.args, name, "floor", url, node=str(pid))

    def on_postgres(self, name: str) -> Side:
        # As many connections as the part `idle` needs.
        node = self.node(name, "--locks", self.postgres.database(f"bench-{name}"), "--connections-max", "22500")
        return self.side(name, node, self.postgres.pid)

    def delayed(self, name: str) -> Side:
        """Behind a proxy that delays each answer."""
        database, port = self.postgres.database(f"bench-{name}"), free_port()
        ms = name.removeprefix("postgres-").removesuffix("ms")
        proxy = [self.args.bench, "delay-proxy", "--listen", f"127.0.0.1:{port}", "--to", f"127.0.0.1:{self.postgres.port}", "--ms", ms]
        self.servers.start(f"proxy-{name}", proxy, is_open(port))
        return self.side(name, self.node(name, "--locks", database.replace(str(self.postgres.port), str(port))), self.postgres.pid)

    def on_sqlite(self, name: str) -> Side:
        return self.side(name, self.node(name, "--locks", f"sqlite:{self.servers.dir}/{name}.db"))

    def redis(self, name: str) -> tuple[int, int]:
        """Not shared with another side."""
        ensure_packages("redis")
        return self.servers.redis(f"redis-of-{name}")

    def on_redis(self, name: str) -> Side:
        port, pid = self.redis(name)
        return self.side(name, self.node(name, "--locks", f"redis://127.0.0.1:{port}", "--new"), pid)

    def gate(self, name: str) -> Side:
        port, pid = self.redis(name)
        node = self.node(name, "--locks", self.postgres.database("bench-gate"), "--gate", f"redis://127.0.0.1:{port}")
        return self.side(name, node, pid, self.postgres.pid)

    def three_nodes(self, name: str) -> Side:
        ensure_packages("nginx")
        database, port, folder = self.postgres.database("bench-three-nodes"), free_port(), str(self.servers.dir)
        nodes = [self.node(f"{name}-{number}", "--locks", database) for number in (1, 2, 3)]
        servers = " ".join(f"server {url.removeprefix('http://')};" for url, _ in nodes)
        conf = self.servers.dir / "nginx.conf"
        conf.write_text(NGINX.replace("DIR", folder).replace("SERVERS", servers).replace("PORT", str(port)))
        nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or "nginx"
        url = f"http://127.0.0.1:{port}"
        front = self.servers.start("nginx", [nginx, "-c", str(conf), "-p", folder], answers(f"{url}/readyz"))
        pids = ",".join(str(pid) for pid in [*(pid for _, pid in nodes), front])
        return Side(self.args, name, "latchgate", url, node=pids, store=str(self.postgres.pid), key=self.key)

    def etcd(self, name: str) -> Side:
        ensure_packages("etcd")
        url, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        command = ["etcd", "--data-dir", f"{self.servers.dir}/etcd", "--log-level", "error"]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        return Side(self.args, name, "etcd", url, node=str(self.servers.start(name, command, answers(f"{url}/health"))))

    def webdis(self, name: str) -> Side:
        """With the settings of Debian's package, apart from ports and files."""
        ensure_packages("webdis")
        redis, store = self.redis(name)
        port, conf = free_port(), self.servers.dir / "webdis.json"
        settings = {"redis_host": "127.0.0.1", "redis_port": redis, "http_host": "127.0.0.1", "http_port": port, "threads": 2}
        settings |= {"daemonize": False, "database": 0, "verbosity": 3, "logfile": f"{self.servers.dir}/webdis-own.log"}
        conf.write_text(json.dumps(settings))
        url = f"http://127.0.0.1:{port}"
        pid = self.servers.start(name, ["webdis", str(conf)], answers(f"{url}/PING"))
        return Side(self.args, name, "webdis", url, node=str(pid), store=str(store))

    def curator(self, name: str) -> Side:
        ensure_packages("java", "javac", "zookeeper", "curator")
        jars = [f"/usr/share/java/{jar}.jar" for jar in JARS.split()] + glob.glob("/usr/share/java/netty-*.jar")
        path, port, classes = ":".join(jars), free_port(), self.servers.dir / "curator"
        classes.mkdir()
        subprocess.run(["javac", "-cp", path, "-d", str(classes), TOP / "service/bench/peers/CuratorLoad.java"], check=True)
        conf = self.servers.dir / "zookeeper.cfg"
        settings = [f"dataDir={self.servers.dir}/zookeeper", f"clientPort={port}", "clientPortAddress=127.0.0.1"]
        conf.write_text("\n".join([*settings, "tickTime=2000", "admin.enableServer=false", "maxClientCnxns=0"]))
        server = "org.apache.zookeeper.server.ZooKeeperServerMain"
        command = ["java", "-Dzookeeper.admin.enableServer=false", "-cp", path, server, str(conf)]
        pid = self.servers.start("zookeeper", command, is_open(port))
        return Side(self.args, name, "curator", f"java -cp {path}:{classes} CuratorLoad 127.0.0.1:{port}", node=str(pid))

    def octostore(self, name: str) -> Side:
        binary = shutil.which(name) or str(TARGET / "peers/bin/octostore")
        if not os.path.exists(binary):
            say("building octostore")
            subprocess.run(["cargo", "install", "--quiet", "--locked", "--root", TARGET / "peers", "octostore"], check=True)
        port, token = free_port(), "bench-token-0123456789"
        settings = [f"BIND_ADDR=127.0.0.1:{port}", f"DATABASE_URL={self.servers.dir}/octostore.db", f"STATIC_TOKENS=bench:{token}"]
        pid = self.servers.start(name, ["env", *settings, "RUST_LOG=error", binary, "serve"], is_open(port))
        return Side(self.args, name, "octostore", f"http://127.0.0.1:{port}", node=str(pid), key=token)


def cpu_us(pid: str) -> float:
    return sum(int(open(path).read().split()[0]) for path in glob.glob(f"/proc/{pid}/task/*/schedstat")) / 1e3


class Results:
    """By round; `None` where a measurement failed."""

    def __init__(self) -> None:
        self.entries: dict[Which, list[Report | None]] = {}

    def measure_all(self, sides: list[Side], args: argparse.Namespace) -> None:
        """In each round, the sides have their turns at one measurement before the next one begins: what is compared is measured close
        together."""
        jobs = dict.fromkeys(job for side in sides for job in side.jobs() if job[0] in (args.only or PARTS))
        for number in range(1, args.rounds + 1):
            for job in jobs:
                # These take long, and compare within themselves.
                if number > 1 and job[0] in ("idle", "renewals", "held"):
                    continue
                for side in (side for side in sides if job in side.jobs()):
                    self.measure(side, job, f"round {number} of {args.rounds}")

    def measure(self, side: Side, job: tuple[str, str, int], turn: str) -> None:
        _, workload, connections = job
        report: Report | None = None
        shown = "failed"
        try:
            report = side.measure(workload, connections)
            shown = f"{report['operations_per_second']:.0f}/s"
            if report["errors"]:
                shown += f"; some requests failed: {report['errors']}"
            if not report["operations"]:
                report = None
        except (OSError, ValueError) as error:
            shown += f": {error}"
        print(f"{turn}: {side.name} {workload} {connections}: {shown}", file=sys.stderr)
        self.entries.setdefault((side.name, workload, connections), []).append(report)

    def values(self, which: Which, value: Value) -> list[float]:
        found = [value(report) for report in self.entries.get(which, []) if report]
        return [number for number in found if number is not None]

    def ratios(self, of: Which, to: Which, value: Value) -> list[float]:
        """Round by round: measurements of one round are neighbours."""
        pairs = zip(self.entries.get(of, []), self.entries.get(to, []))
        both = [(value(first), value(second)) for first, second in pairs if first and second]
        return [first / second for first, second in both if first is not None and second]


def rate(report: Report) -> float | None:
    return float(report["operations_per_second"])


def first_call(quantile: str) -> Value:
    """Of the latencies of the call that takes a lock or claims an operation."""
    parts = ("acquire", "pre", "hand-off")
    return lambda report: next((report["latency_us"][part][quantile] for part in parts if part in report["latency_us"]), None)


def field(name: str) -> Value:
    return lambda report: report.get(name)


def also(name: str, to: str | None = None) -> Value:
    def value(report: Report) -> float | None:
        found = report["also"].get(name)
        base = report["also"].get(to) if to else 1.0
        return found / base if found is not None and base else None

    return value


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def spread(values: list[float]) -> str:
    """The median, and the lowest and the highest."""
    if not values:
        return ""
    shown = [f"{value:.0f}" if value >= 100 else f"{value:.2f}" for value in (median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]}–{shown[2]})"


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def tables(results: Results) -> str:
    lines: list[str] = []
    for workload, title in TITLES.items():
        entries = [which for which in results.entries if which[1] == workload]
        if not entries:
            continue
        beside = ["of the bare handler", "of etcd", "of webdis"]
        heads = ["", "connections", "per second", *beside, "p50 µs", "p99 µs", "CPU µs, node", "store"]
        lines += [title, "", row(*heads), row(*["---"] * len(heads))]
        for side, _, connections in entries:
            which = (side, workload, connections)
            if not results.values(which, rate):
                lines.append(row(side, connections, "failed", *[""] * 7))
                continue
            pairs = "fresh" if workload == "fresh" else "repeated"
            others = [results.ratios(which, (name, pairs, connections), rate) for name in ("floor", "etcd", "webdis")]
            cells = [spread(other) if workload != "hot" else "" for other in others]
            for value in (first_call("p50"), first_call("p99"), field("node_cpu_us"), field("store_cpu_us")):
                values = results.values(which, value)
                cells.append(f"{median(values):.0f}" if values else "")
            lines.append(row(side, connections, spread(results.values(which, rate)), *cells))
        lines.append("")
    return "\n".join(lines)


def targets(results: Results) -> str:
    """What is to be reached, beside what was measured."""

    def rates(of: Which, to: Which) -> list[float]:
        return results.ratios(of, to, rate)

    def repeated(side: str, connections: int = CONNECTIONS) -> Which:
        return (side, "repeated", connections)

    def fresh(side: str) -> Which:
        return (side, "fresh", CONNECTIONS)

    def hot(side: str, waiters: int) -> Which:
        return (side, "hot", waiters)

    def beside(workload: str, value: Value) -> list[float]:
        return results.values(("postgres", workload, CONNECTIONS), value)

    def mean_ms(workload: str, call: str) -> list[float]:
        which = ("gate", workload, FEWER_CONNECTIONS)
        return results.values(which, lambda report: report["latency_us"][call]["mean"] / 1e3)

    def node_cpu(side: str) -> list[float]:
        return results.ratios(repeated(side), repeated("floor"), field("node_cpu_us"))

    def all_cpu(report: Report) -> float | None:
        node = report.get("node_cpu_us")
        return None if node is None else node + report.get("store_cpu_us", 0.0)

    def kb_of_poll(report: Report) -> float | None:
        found = also("bytes_of_each_poll")(report)
        return None if found is None else found / 1024

    def sustained(report: Report) -> float | None:
        return float(report["operations_per_second"] / report["rate"])

    default = "Postgres by default (history, metrics, API key), repeated keys"
    plain = "Postgres, fsync on, no history, repeated keys"
    gate, durable = "gate, pre + post on Redis, 32 connections", "the same, durable (Postgres)"
    of_handler, of_etcd, of_curator, of_webdis = (f"× {peer}" for peer in ("bare handler", "etcd's gateway", "Curator", "webdis"))
    p50 = also("acquire_p50_us_beside", to="acquire_p50_us_alone")
    p99 = also("acquire_p99_us_beside", to="acquire_p99_us_alone")
    no_history, one = repeated("postgres-no-history"), repeated("postgres", 1)
    lines: list[tuple[str, str, float, str, list[float]]] = []
    for peer, of_peer, least in (
        ("floor", of_handler, (0.35, 0.28)),
        ("etcd", of_etcd, (3, 3)),
        ("curator", of_curator, (2, 2)),
        ("webdis", f"{of_webdis}, no persistence", (0.45, 0.45)),
    ):
        lines.append((default, "≥", least[0], of_peer, rates(repeated("postgres"), repeated(peer))))
        lines.append(("the same, fresh keys", "≥", least[1], of_peer, rates(fresh("postgres"), fresh(peer))))
    fewest = results.values(hot("postgres", 128), also("grants_min", to="grants_max"))
    lines += [
        (plain, "≥", 0.38, of_handler, rates(no_history, repeated("floor"))),
        (f"{default}, CPU of the node", "≤", 2.1, of_handler, node_cpu("postgres")),
        ("Redis by default, CPU of the node", "≤", 1.7, of_handler, node_cpu("redis")),
        ("SQLite by default, CPU of the node", "≤", 2.6, of_handler, node_cpu("sqlite")),
        ("Postgres by default, each answer 1 ms later", "≥", 0.65, "× of none", rates(repeated("postgres-1ms"), repeated("postgres-0ms"))),
        ("one connection, p50 of acquire", "≤", 0.9, of_etcd, results.ratios(one, repeated("etcd", 1), first_call("p50"))),
        ("one hot key, 16 waiters", "≥", 1.5, of_curator, rates(hot("postgres", 16), hot("curator", 16))),
        ("one hot key, 128 waiters", "≥", 1.9, of_curator, rates(hot("postgres", 128), hot("curator", 128))),
        ("one hot key, 1 000 waiters", "≥", 0.8, "× of 16 waiters", rates(hot("postgres", 1_000), hot("postgres", 16))),
        ("one hot key, 10 000 waiters", "≥", 0.8, "× of 16 waiters", rates(hot("postgres", 10_000), hot("postgres", 16))),
        ("one hot key, 128 waiters, least served", "≥", 0.9, "× most served", fewest),
        ("SQLite by default, 128 connections", "≥", 3, of_etcd, rates(repeated("sqlite"), repeated("etcd"))),
        ("SQLite by default, 32 connections", "≥", 3, of_etcd, rates(repeated("sqlite", 32), repeated("etcd", 32))),
        ("SQLite by default, all CPU", "≤", 45, " µs per pair", results.values(repeated("sqlite"), all_cpu)),
        ("Redis by default, repeated keys", "≥", 1.2, "× Postgres by default", rates(repeated("redis"), repeated("postgres"))),
        ("the same, fresh keys", "≥", 1.1, "× Postgres by default", rates(fresh("redis"), fresh("postgres"))),
        ("Redis by default, repeated keys", "≥", 0.6, of_webdis, rates(repeated("redis"), repeated("webdis"))),
        ("Redis, no history, repeated keys", "≥", 0.8, of_webdis, rates(repeated("redis-no-history"), repeated("webdis"))),
        ("gate, pre + post on Redis", "≥", 0.6, of_webdis, rates(("gate", "gate", CONNECTIONS), fresh("webdis"))),
        (f"{gate}, mean of a pre", "≤", 2, " ms", mean_ms("gate", "pre")),
        (f"{gate}, mean of a post", "≤", 2, " ms", mean_ms("gate", "post")),
        (f"{durable}, mean of a pre", "≤", 2.5, " ms", mean_ms("gate-durable", "pre")),
        (f"{durable}, mean of a post", "≤", 2, " ms", mean_ms("gate-durable", "post")),
        ("100 000 held leases, each renewed every 10 s", "≥", 0.99, " of the rate", beside("renewals", sustained)),
        ("the same, p99 of acquires", "≤", 2, "× of idle", beside("renewals", p99)),
        ("1 000 000 held leases, p50 of acquires", "≤", 1.3, "× of none", beside("held", p50)),
        ("the same, memory of the node", "≤", 300, " MB", beside("held", also("node_memory_mib"))),
        ("10 000 idle long polls, memory of each", "≤", 14, " KB", beside("idle", kb_of_poll)),
        ("the same, p99 of acquires", "≤", 1.5, "× of none", beside("idle", p99)),
        ("three nodes behind nginx", "≥", 0.4, "× of one node, direct", rates(repeated("three-nodes"), repeated("postgres"))),
    ]
    text = [row("work", "target", "measured", ""), row(*["---"] * 4)]
    for work, sign, bound, unit, values in lines:
        is_met = bool(values) and (median(values) >= bound if sign == "≥" else median(values) <= bound)
        verdict = ("met" if is_met else "missed") if values else "not measured"
        text.append(row(work, f"{sign} {bound:g}{unit}", spread(values) or "–", verdict))
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=lambda text: text.split(","), help="what to measure, for example floor,postgres,etcd; all if absent")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"which parts: {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="of each measurement")
    parser.add_argument("--warmup-seconds", type=int, default=1)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--polls", type=int, default=10_000, help="clients that wait in the part idle")
    parser.add_argument("--leases", type=int, default=100_000, help="of the part renewals")
    parser.add_argument("--held", type=int, default=1_000_000, help="leases of the part held")
    parser.add_argument("--json", help="where to write all measurements")
    args = parser.parse_args()
    if unknown := set(args.only or []) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(unknown)}")
    ensure_packages("cc", "postgres")
    args.latchgate, args.bench = binaries()
    sides = Sides(args)
    if unknown := set(args.sides or []) - set(sides.all):
        parser.error(f"unknown sides: {', '.join(unknown)}; there are {', '.join(sides.all)}")
    results = Results()
    results.measure_all(sides.start(), args)
    print(f"{args.rounds} rounds of {args.seconds} s each, {args.connections} connections\n")
    print(tables(results))
    print(targets(results))
    if args.json:
        names = ("side", "workload", "connections")
        entries = [dict(zip(names, which), reports=reports) for which, reports in results.entries.items()]
        with open(args.json, "w") as file:
            json.dump({"entries": entries}, file, indent=2)


if __name__ == "__main__":
    main()
