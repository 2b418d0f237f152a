"""Latchgate beside itself or a bare handler, on a private Postgres (fsync on), as ratios in one run.

  node       one node beside an HTTP handler that only parses and answers, and many waiters beside few
  handoffs   three nodes: a lock that passes from node to node, beside one whose waiters are at one node
  trouble    other keys while one key is in trouble: its row is locked by another session, then its state is unreadable, then it is large
  cost       the CPU time per request that API keys cost
  apps       an app beside another one that is at its quotas

CLUSTER_BINARY and BENCH_BINARY are a `latchgate` and a `latchgate-bench` to use instead of building them. Nodes have no history, unless
HISTORY_RETENTION says so."""

import argparse
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from statistics import median_low
from typing import Any

from servers import Postgres, Servers, binaries, ensure_packages, say

Report = dict[str, Any]
# What each mode has by default: runs, seconds, seconds of warm-up, connections, waiters.
MODES = {
    "node": (3, 10, 2, 128, 1_000),
    "handoffs": (3, 5, 1, 1, 300),
    "trouble": (5, 6, 1, 12, 1),
    "apps": (5, 6, 1, 8, 1),
    "cost": (7, 4, 1, 32, 1),
}


def call(url: str, body: Report | None = None, method: str = "POST", key: str = "") -> Report:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body or {}).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: Report = json.loads(answer.read() or "{}")
            return found
    except urllib.error.HTTPError as error:
        sys.exit(f"error: {method} {url}: {error.read().decode()}")


def rate(report: Report) -> float:
    return float(report["operations_per_second"])


class Comparison:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.latchgate, self.bench = binaries()
        self.servers = Servers()
        self.postgres = Postgres(self.servers)
        self.reports: dict[str, list[Report]] = {}

    def node(self, name: str, key: str = "") -> tuple[str, int]:
        history = os.environ.get("HISTORY_RETENTION", "0")
        return self.servers.http(name, [self.latchgate, "serve", "--locks", self.postgres.url, "--history-retention", history], key)

    def measure(self, side: str, connections: int, workload: str, url: str, *options: str) -> None:
        """With what `latchgate-bench load` reports. A rate with failures means nothing."""
        args = self.args
        command = [self.bench, "load", workload, "--url", url, "--connections", str(connections), "--json", *options]
        command += ["--duration", f"{args.seconds}s", "--warmup", f"{args.warmup_seconds}s"]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        self.reports.setdefault(side, []).append(json.loads(ended.stdout))

    def beside(self, asking: dict[str, list[str]], measure: Callable[[], None]) -> dict[str, Report]:
        """Measures beside callers; returns their reports."""
        seconds = str(self.args.seconds + self.args.warmup_seconds)
        start = [self.bench, "pairs", "--duration", seconds, "--warmup", "0"]
        callers = {name: subprocess.Popen([*start, *options], stdout=subprocess.PIPE) for name, options in asking.items()}
        measure()
        return {name: json.loads(caller.communicate()[0]) for name, caller in callers.items()}

    def median(self, side: str, value: Callable[[Report], float]) -> float:
        return median_low(map(value, self.reports[side]))

    def conclude(self, what: str, result: float) -> None:
        """Prints the measurements since the last conclusion, and what follows from them."""
        result = round(result, 2)
        if self.args.json:
            print(json.dumps({"what": what, "result": result, "reports": self.reports}))
        else:
            for side, reports in self.reports.items():
                calls = [f"{call} {self.latencies(reports, call)} µs" for call in reports[0]["latency_us"]]
                print(f"  {side}: {each([round(rate(report)) for report in reports])} per second, {', '.join(calls)}")
            print(f"{what}: {result}")
        self.reports = {}
        least, most = self.args.at_least, self.args.at_most
        if (least is not None and result < least) or (most is not None and result > most):
            sys.exit(f"error: {what}: {result}, but at least {least}, at most {most} was asked for")

    @staticmethod
    def latencies(reports: list[Report], call: str) -> str:
        return ", ".join(f"{part} {each([report['latency_us'][call][part] for report in reports])}" for part in ("p50", "p99"))

    def compare_node(self) -> None:
        args = self.args
        subject = self.node("latchgate")[0]
        floor = self.servers.http("floor", [self.bench, "floor-server"])[0]
        for _ in range(args.runs):
            self.measure("floor", args.connections, "repeated", floor)
            self.measure("node", args.connections, "repeated", subject)
        self.conclude("acquire and release, of the bare handler's rate", self.median("node", rate) / self.median("floor", rate))
        for _ in range(args.runs):
            self.measure("few waiters", 16, "hot", subject)
            self.measure("many waiters", args.waiters, "hot", subject)
        ratio = self.median("many waiters", rate) / self.median("few waiters", rate)
        self.conclude(f"hand-offs of one key with {args.waiters} waiters, of the rate of 16", ratio)

    def compare_handoffs(self) -> None:
        nodes = [self.node(f"node-{number}")[0] for number in (1, 2, 3)]
        for _ in range(self.args.runs):
            self.measure("one node", self.args.waiters, "hot", nodes[0])
            self.measure("three nodes", self.args.waiters, "hot", ",".join(nodes))
        across = self.median("three nodes", lambda report: report["latency_us"]["crossing"]["p50"])
        within = self.median("one node", lambda report: report["latency_us"]["hand-off"]["p50"])
        self.conclude("hand-offs from node to node, of the p50 at one node", across / within)

    def compare_cost(self) -> None:
        without, without_pid = self.node("without")
        key = self.new_key()
        guarded, with_pid = self.node("with", key)
        for _ in range(self.args.runs):
            self.measure("without", self.args.connections, "repeated", without, "--node-pid", str(without_pid))
            self.measure("with", self.args.connections, "repeated", guarded, "--api-key", key, "--node-pid", str(with_pid))
        # Neighbours saw the same load of the machine. A pair is two requests.
        pairs = zip(self.reports["with"], self.reports["without"])
        self.conclude("cost per request, in µs of CPU time", median_low((a["node_cpu_us"] - b["node_cpu_us"]) / 2 for a, b in pairs))

    def new_key(self) -> str:
        return subprocess.run([self.latchgate, "api-key", "generate"], check=True, capture_output=True, text=True).stdout.strip()

    def beside_key(self, url: str, key: str, is_granted: bool, connections: int, fields: Report, *options: str) -> None:
        """Other keys while callers ask for this one, and for a healthy one."""
        for _ in range(self.args.runs):
            for side, name in (("healthy", f"healthy-{key}"), ("trouble", key)):
                acquire = [f"/v1/locks/{name}/acquire", json.dumps({"lease_id": "{id}", "ttl_ms": 1_000} | fields)]
                asking = ["--url", url, "--connections", str(connections), "--acquire", *acquire]
                asking += ["--release", f"/v1/locks/{name}/release", '{"lease_id":"{id}"}', *options]
                measure = lambda: self.measure(side, self.args.connections, "repeated", url)  # noqa: E731
                answers = self.beside({"answers": asking}, measure)["answers"]
            if (answers["operations"] > 0) != is_granted:
                sys.exit(f"error: the key {key} is not in trouble: {answers}")
        self.conclude("beside a key in trouble, of the rate beside a healthy one", self.median("trouble", rate) / self.median("healthy", rate))

    def compare_trouble(self) -> None:
        url, psql = self.node("latchgate")[0], self.postgres.psql
        for key in ("slow", "bad"):
            call(f"{url}/v1/locks/{key}/acquire", {"lease_id": "bench"})
            call(f"{url}/v1/locks/{key}/release", {"lease_id": "bench"})
        say("a row that another session has locked")
        row = "select 1 from latchgate.locks where key = 'slow' for update"
        lock = [str(self.postgres.bin / "psql"), "-q", self.postgres.url, "-c", "begin", "-c", row, "-c", "select pg_sleep(86400)"]
        self.servers.start("locker", lock, lambda: not psql(f"{row} skip locked"))
        self.beside_key(url, "slow", False, 1, {}, "--pause-ms", "10")
        say("a state that cannot be decoded")
        psql("update latchgate.locks set state = 'nonsense', version = version + 1 where key = 'bad'")
        self.beside_key(url, "bad", False, 1, {}, "--pause-ms", "10")
        say("a state of 30 leases with long metadata, and four callers")
        many = {"mode": "permits", "limit": 1_000}
        for _ in range(30):
            call(f"{url}/v1/locks/large/acquire", {"ttl_ms": 300_000, "metadata": {"text": "x" * 900}} | many)
        self.beside_key(url, "large", True, 4, many)

    def compare_apps(self) -> None:
        limit, admin = 100, self.new_key()
        url = self.node("latchgate", admin)[0]
        keys = []
        for app, quotas in (("busy", {"requests_per_second": limit}), ("other", None)):
            call(f"{url}/v1/admin/apps", {"app": app}, key=admin)
            if quotas:
                call(f"{url}/v1/admin/apps/{app}", {"quotas": quotas}, "PATCH", admin)
            keys.append(call(f"{url}/v1/admin/api-keys", {"app": app, "scopes": ["read", "locks"]}, key=admin)["api_key"])
        # Five times as many requests as the app may send. Half of the clients leave their leases to expire.
        acquire = ["--url", url, "--api-key", keys[0], "--connections", "8", "--fresh", "--rate", str(limit * 5 // 2)]
        acquire += ["--acquire", "/v1/locks/bench-{run}-{key}/acquire", '{"lease_id":"{id}","ttl_ms":1000}']
        release = ["--release", "/v1/locks/bench-{run}-{key}/release", '{"lease_id":"{id}"}']

        def measure(side: str) -> None:
            self.measure(side, self.args.connections, "repeated", url, "--api-key", keys[1])

        for _ in range(self.args.runs):
            measure("alone")
            asked = self.beside({"careful": [*acquire, *release], "careless": acquire}, lambda: measure("beside"))
        if "429" not in json.dumps(asked["careless"]):
            sys.exit(f"error: the busy app is not at its quotas: {asked['careless']}")
        p99 = lambda report: report["latency_us"]["acquire"]["p99"]  # noqa: E731
        self.conclude("beside an app at its quotas, of the p99 of acquires alone", self.median("beside", p99) / self.median("alone", p99))


def each(values: list[float]) -> str:
    return f"{median_low(values)} ({' '.join(map(str, values))})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", choices=MODES, default="node")
    parser.add_argument("--runs", type=int, help="measurements of each side")
    parser.add_argument("--seconds", type=int, help="of each measurement")
    parser.add_argument("--warmup-seconds", type=int)
    parser.add_argument("--connections", type=int, help="of pairs")
    parser.add_argument("--waiters", type=int, help="of hand-offs; `node` compares them with 16")
    parser.add_argument("--at-least", type=float, help="fail if a result is below")
    parser.add_argument("--at-most", type=float, help="fail if a result is above")
    parser.add_argument("--json", action="store_true", help="print results and measurements as JSON")
    args = parser.parse_args()
    for name, value in zip(("runs", "seconds", "warmup_seconds", "connections", "waiters"), MODES[args.mode]):
        if getattr(args, name) is None:
            setattr(args, name, value)
    ensure_packages("cc", "postgres")
    getattr(Comparison(args), f"compare_{args.mode}")()


if __name__ == "__main__":
    main()
