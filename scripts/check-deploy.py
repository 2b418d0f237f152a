#!/usr/bin/env python3
"""Fails when docker-compose.yml, deploy/ and .env.example do not fit each other or what the binary accepts, when nginx or systemd does not accept
its file, or when the manifests do not fit the schemas of Kubernetes. `make drift` calls it from the top directory, with the binary as its argument.
It needs no Docker: scripts/test-compose.sh runs the images."""

import ipaddress
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from urllib.parse import urlsplit

import helm_python
import yaml

BINARY = sys.argv[1]
WRONG = []


def expect(holds, complaint):
    if not holds:
        WRONG.append(complaint)


def read(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def interpolated(value):
    """As Compose interpolates: with the defaults, and with a password for variables without one."""
    if isinstance(value, dict):
        return {key: interpolated(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolated(inner) for inner in value]
    if not isinstance(value, str):
        return value

    def replace(match):
        if match.group(0) == "$$":
            return "$"
        return match.group(3) if match.group(2) == ":-" else "0123456789abcdef"

    return re.sub(r"\$\$|\$\{(\w+)(:-|:\?)([^}]*)\}", replace, value)


def latchgate(*arguments, env=None):
    bare = {name: text for name, text in os.environ.items() if not name.startswith("LATCHGATE_")}
    return subprocess.run([BINARY, *arguments], env=bare | (env or {}), capture_output=True, text=True, timeout=20)


def run(*command):
    """Also a program that Debian has outside of some users' PATH."""
    env = os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin"}
    program = shutil.which(command[0], path=env["PATH"])
    return subprocess.run([program, *command[1:]], env=env, capture_output=True, text=True, timeout=120)


def setting(flag):
    """The default of a flag of `serve`, which has no unit or is a duration."""
    entry = re.search(rf" --{flag} <\w+> [^\[]*\[default: (\w+)\]", SERVE_HELP)
    expect(entry, f"serve has no --{flag} with a default")
    default = entry.group(1) if entry else "0"
    return int(default) if default.isdecimal() else in_ms(default)


def in_ms(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m)", text).groups()
    return int(number) * {"ms": 1, "s": 1_000, "m": 60_000}[unit]


def constant(name, path):
    return int(re.search(rf"const {name}: \w+ = ([\d_]+);", read(path)).group(1))


def directive(name, text):
    found = re.search(rf"^\s*{name} (\S+);", text, re.MULTILINE)
    expect(found, f"deploy/nginx.conf does not say {name}")
    return found.group(1) if found else "0s"


def check_environment_file():
    used = set(re.findall(r"\$\{(\w+)", COMPOSE_TEXT))
    documented = set(re.findall(r"^(?:# )?([A-Z_]+)=", read(".env.example"), re.MULTILINE))
    expect(used == documented, f".env.example and docker-compose.yml differ in {sorted(used ^ documented)}")


def check_nodes(nodes, dockerfile):
    flags = re.findall(r" --([a-z-]+)", SERVE_HELP)
    known = {"LATCHGATE_" + flag.upper().replace("-", "_") for flag in flags}
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE).group(1))
    expect(re.search(rf"^COPY --from=build \S+ {entry[0]}$", dockerfile, re.MULTILINE), "ENTRYPOINT is not the copied binary")
    image_env = dict(re.findall(r"^ENV (\w+)=(\S+)$", dockerfile, re.MULTILINE))
    exposed = re.search(r"^EXPOSE (\d+)$", dockerfile, re.MULTILINE).group(1)
    expect([node for node in nodes.values() if "build" in node], "no node builds the image")
    for name, node in nodes.items():
        env = image_env | node["environment"]
        expect(env.keys() <= known, f"{name}: serve does not know {sorted(env.keys() - known)}")
        accepted = latchgate(*node["command"], "--help")
        expect(accepted.returncode == 0, f"{name}: {node['command']}: {accepted.stderr}")
        # The store is the last setting to be checked, so this error shows that all others are accepted.
        refused = latchgate(*node["command"], env=env | {"LATCHGATE_LOCKS": "nothing"})
        expect("--locks must be" in refused.stderr, f"{name}: its environment is refused: {refused.stderr}")
        check_urls(name, env)
        test = node["healthcheck"]["test"]
        expect(test[:2] == ["CMD", entry[0]], f"{name}: the health check runs something else")
        health = latchgate(*test[2:], "--help")
        expect(health.returncode == 0, f"{name}: {test}: {health.stderr}")
        expect(env["LATCHGATE_LISTEN"].endswith(f":{exposed}"), f"{name} does not listen on the exposed port")
        expect(in_ms(node["stop_grace_period"]) > setting("drain-timeout"), f"{name} is killed while it drains")


def check_urls(name, env):
    locks, gate = urlsplit(env.get("LATCHGATE_LOCKS", "")), urlsplit(env.get("LATCHGATE_GATE", ""))
    postgres, redis = SERVICES["postgres"]["environment"], SERVICES["redis"]["environment"]
    expect(
        (locks.scheme, locks.username, locks.password, locks.hostname, locks.port or 5432, locks.path[1:])
        == ("postgres", postgres["POSTGRES_USER"], postgres["POSTGRES_PASSWORD"], "postgres", 5432, postgres["POSTGRES_DB"]),
        f"{name}: LATCHGATE_LOCKS does not lead to the service postgres",
    )
    expect(
        (gate.scheme, gate.password, gate.hostname, gate.port or 6379)
        == ("redis", redis["REDISCLI_AUTH"], "redis", 6379),
        f"{name}: LATCHGATE_GATE does not lead to the service redis",
    )


def check_services():
    for name, service in SERVICES.items():
        for key in ("restart", "healthcheck", "stop_grace_period", "networks"):
            expect(key in service, f"{name} has no {key}")
        expect(set(service["networks"]) <= COMPOSE["networks"].keys(), f"{name} is on a network that does not exist")
        expect(set(service.get("depends_on", [])) <= SERVICES.keys(), f"{name} depends on a service that does not exist")
        if name != "postgres":
            expect(service.get("read_only") is True, f"{name} can write to its root file system")
            expect(service.get("user", "root").split(":")[0] not in ("root", "0"), f"{name} runs as root")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            exists = os.path.exists(source) if source.startswith(".") else source in COMPOSE["volumes"]
            expect(exists, f"{name}: there is no {source}")
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    expect(COMPOSE["volumes"].keys() <= used, "a volume is not used")


def check_stores():
    postgres, redis = SERVICES["postgres"], SERVICES["redis"]
    expect(int(postgres["image"].split(":")[1]) >= 18, "before 18, Postgres's data was in another directory")
    expect("postgres:/var/lib/postgresql" in postgres["volumes"], "Postgres's data is not in its volume")
    command = shlex.split(redis["command"][-1].splitlines()[0], posix=True)
    directory = command[command.index("--dir") + 1]
    expect(f"redis:{directory}" in redis["volumes"], "Redis's data is not in its volume")
    local = json.loads(re.search(r"REDIS_OPTIONS: .* =\s+(\[.+\]);", read(CLUSTER)).group(1))
    for option, value in zip(local[::2], local[1::2]):
        given = command[command.index(option) + 1] if option in command else None
        expect(given == value, f"Redis: {option} is {value} in {CLUSTER} and {given} in docker-compose.yml")


def check_nginx(nodes):
    nginx, template = SERVICES["nginx"], read("deploy/nginx.conf")
    env = nginx["environment"]
    given = {name for name in env if re.search(env["NGINX_ENVSUBST_FILTER"], name)}
    local = set(re.findall(r'"(BALANCER_\w+)"', read(CLUSTER)))
    wanted = set(re.findall(r"\$\{(\w+)\}", template))
    expect(given == wanted, f"deploy/nginx.conf and docker-compose.yml differ in {sorted(given ^ wanted)}")
    expect(local == wanted, f"deploy/nginx.conf and {CLUSTER} differ in {sorted(local ^ wanted)}")
    rendered = env["NGINX_ENVSUBST_OUTPUT_DIR"]
    expect(rendered in nginx["tmpfs"], "nginx cannot write the rendered template")
    expect("./deploy/nginx.conf:/etc/nginx/templates/nginx.conf.template:ro" in nginx["volumes"], "no template")
    expect(f"{rendered}/nginx.conf" in nginx["command"] and rendered in nginx["command"], "nginx reads another file")
    port = env["BALANCER_LISTEN"].split(":")[1]
    expect(nginx["ports"][0].endswith(f":{port}"), "another port is published than nginx listens on")
    expect(f"http://127.0.0.1:{port}/healthz" in nginx["healthcheck"]["test"], "nginx's health check uses another port")

    subnet = ipaddress.ip_network(COMPOSE["networks"]["front"]["ipam"]["config"][0]["subnet"])
    addresses = []
    for name, node in nodes.items():
        address = node["networks"]["front"]["ipv4_address"]
        expect(ipaddress.ip_address(address) in subnet, f"{name}: {address} is not in {subnet}")
        addresses.append(f"{address}:{node['environment']['LATCHGATE_LISTEN'].split(':')[1]}")
    check_prometheus(addresses)
    balanced = [env[name] for name in sorted(env) if name.startswith("BALANCER_NODE_")]
    expect(balanced == addresses, f"nginx has {balanced}, the nodes are at {addresses}")

    longest = max(2 * setting("body-bytes-max"), 500 * constant("LEASE_BYTES_MAX", "service/node/src/http/endpoint.rs"))
    for name in ("client_max_body_size", "client_body_buffer_size"):
        expect(directive(name, template) == str(longest), f"{name} is not {longest}, as that of a node")
    expect(f"at most {longest} bytes" in template, f"nginx's refusal does not say {longest} bytes")
    expect(f"{-(-longest // 1024)} KiB for many leases" in read("docs/GUARANTEES.md"), f"docs/GUARANTEES.md does not say {longest} bytes")
    expect(
        directive("proxy_set_header X-Forwarded-For", template) == "$remote_addr",
        "nginx passes on what a client says about its address",
    )
    read_timeout = in_ms(directive("proxy_read_timeout", template))
    expect(read_timeout > setting("wait-max") + 10_000, "nginx does not wait as long as a long poll")
    for keepalive in re.findall(r"keepalive_timeout (\S+);", template):
        expect(in_ms(keepalive) < setting("read-timeout"), "nginx uses connections that a node has closed")
    for method in ("by_key", "round_robin"):
        # Even the test opens the port.
        with tempfile.TemporaryDirectory() as folder:
            values = {name: env[name] for name in given} | {"BALANCER_LISTEN": f"unix:{folder}/nginx", "BALANCER_METHOD": method}
            conf = pathlib.Path(folder, "nginx.conf")
            conf.write_text(re.sub(r"\$\{(\w+)\}", lambda match: values.get(match.group(1), ""), template))
            said = run("nginx", "-t", "-e", "stderr", "-p", folder, "-c", conf)
        expect(said.returncode == 0 and "[emerg]" not in said.stderr, f"deploy/nginx.conf: {said.stderr}")


def check_prometheus(addresses):
    prometheus = SERVICES["prometheus"]
    expect(prometheus["profiles"] == ["metrics"], "Prometheus is not optional")
    for rules in yaml.safe_load(read("deploy/prometheus.yml"))["rule_files"]:
        source = f"./deploy/{os.path.basename(rules)}"
        expect(f"{source}:{rules}:ro" in prometheus["volumes"] and yaml.safe_load(read(source)), f"{rules} is not there")
    check_prometheus_start(prometheus)
    [job] = yaml.safe_load(read("deploy/prometheus.yml"))["scrape_configs"]
    expect(job["static_configs"][0]["targets"] == addresses, "Prometheus scrapes other addresses than the nodes'")
    path = job.get("metrics_path", "/metrics")
    expect(f'"{path}"' in read("service/node/src/http/endpoints.rs"), f"a node has no {path}")


def check_prometheus_start(prometheus):
    """What its shell makes of the configuration, with an API key and without one."""
    [script] = prometheus["command"]
    for api_key in ("", "lgk_0123"):
        with tempfile.TemporaryDirectory() as directory:
            local = script.replace("/etc/prometheus/", "deploy/").replace("/tmp", directory).replace("exec prometheus", "echo")
            env = {"LATCHGATE_METRICS_API_KEY": api_key, "PATH": os.environ["PATH"]}
            words = subprocess.run(["sh", "-euc", local], env=env, capture_output=True, text=True, check=True).stdout.split()
            [config] = [word.split("=")[1] for word in words if word.startswith("--config.file=")]
            [job] = yaml.safe_load(read(config))["scrape_configs"]
            expect(("authorization" in job) == bool(api_key), f"with the API key {api_key!r}, Prometheus sends another one")
            if api_key:
                [secret] = job["authorization"].values()
                expect(read(secret.replace("/tmp", directory)) == api_key, "Prometheus sends another API key")


def check_dockerfile(dockerfile):
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE):
        copied |= set(line.split()[:-1])
    let_in = set(re.findall(r"^!(\S+)$", read(".dockerignore"), re.MULTILINE))
    expect(copied == let_in, f"deploy/Dockerfile and .dockerignore differ in {sorted(copied ^ let_in)}")
    for path in copied:
        expect(os.path.exists(path), f"deploy/Dockerfile copies {path}, which does not exist")
    sources = [source for source in pathlib.Path("service").glob("*/src/**/*.rs") if "testkit" not in source.parts]
    for source in sources:
        for embedded in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', read(source)):
            check_embedded(source, source.parent / embedded, copied)
        for embedded in re.findall(r'migrate!\("([^"]+)"\)', read(source)):
            check_embedded(source, pathlib.Path(*source.parts[:2]) / embedded, copied)
    version = re.search(r'^rust-version = "(.+)"$', read("Cargo.toml"), re.MULTILINE).group(1)
    expect(f"ARG RUST_VERSION={version}\n" in dockerfile, f"deploy/Dockerfile does not build with Rust {version}")


def check_embedded(source, path, copied):
    path = os.path.relpath(path)
    expect(os.path.exists(path), f"{source}: there is no {path}")
    expect(path in copied or path.split("/")[0] in copied, f"{source} embeds {path}, which deploy/Dockerfile does not copy")


def check_kubernetes():
    documents = documents_of("deploy/kubernetes/latchgate.yaml")
    deployment = documents["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    [node] = pod["containers"]
    env = {entry["name"]: entry.get("value", "a-namespace") for entry in node["env"]}
    env = {name: re.sub(r"\$\((\w+)\)", lambda match: env[match.group(1)], value) for name, value in env.items()}
    for host in ("latchgate", "latchgate.a-namespace", "latchgate.a-namespace.svc", "latchgate.a-namespace.svc.cluster.local"):
        allowed = env["LATCHGATE_ALLOWED_HOSTS"].split(",")
        expect(any(host == name or name.startswith("*.") and host.endswith(name[1:]) for name in allowed), f"{host} is no allowed host")
    refused = latchgate(*node["args"], env=env | {"LATCHGATE_ADMIN_API_KEY": ADMIN_KEY, "LATCHGATE_LOCKS": "nothing"})
    expect("--locks must be" in refused.stderr, f"the environment of the Deployment is refused: {refused.stderr}")
    expect(pod["enableServiceLinks"] is False, "Kubernetes sets variables LATCHGATE_… that no node reads")
    drain = in_ms(env["LATCHGATE_DRAIN_NOTICE"]) + setting("drain-timeout")
    expect(pod["terminationGracePeriodSeconds"] * 1_000 > drain, "Kubernetes kills a node while it drains")
    routes = read("service/node/src/http/endpoints.rs")
    for probe in ("livenessProbe", "startupProbe", "readinessProbe"):
        path = node[probe]["httpGet"]["path"]
        expect(f'row("GET", "{path}"' in routes, f"a node has no {path}")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    monitor = yaml.safe_load(read("deploy/kubernetes/prometheus-operator/podmonitor.yaml"))
    for document in (*documents.values(), monitor):
        selector = document["spec"].get("selector", document["spec"].get("podSelector"))
        expect(selector.get("matchLabels", selector) == labels, f"the {document['kind']} selects other pods")
    policy = documents["NetworkPolicy"]
    [port] = node["ports"]
    opened = [entry["port"] for rule in policy["spec"]["ingress"] for entry in rule["ports"]]
    scraped = [(entry["port"], entry.get("path", "/metrics")) for entry in monitor["spec"]["podMetricsEndpoints"]]
    expect(opened == [port["name"]] and scraped == [(port["name"], "/metrics")], "a port or a path is not the node's")


def check_helm():
    """What Helm makes of the chart: the documents of deploy/kubernetes, but for what its values change."""
    findings = helm_python.lint("deploy/helm", namespace="latchgate", strict=True)
    expect(not findings["errors"], f"helm lint: {findings}")
    plain = documents_of("deploy/kubernetes/latchgate.yaml")
    monitor = documents_of("deploy/kubernetes/prometheus-operator/podmonitor.yaml")
    expect(rendered({}) == plain, "deploy/helm and deploy/kubernetes/latchgate.yaml differ")
    expect(rendered({"podMonitor": {"enabled": True}}) == plain | monitor, "deploy/helm has another PodMonitor")
    expect(plain.keys() - rendered({"networkPolicy": {"enabled": False}}) == {"NetworkPolicy"}, "networkPolicy.enabled does nothing")
    changed = rendered({"allowedHosts": ["locks.example.com"], "env": {"LATCHGATE_TTL_MAX": "10m"}})["Deployment"]
    env = {entry["name"]: entry.get("value") for entry in changed["spec"]["template"]["spec"]["containers"][0]["env"]}
    expect(env["LATCHGATE_ALLOWED_HOSTS"].endswith(",locks.example.com"), "allowedHosts are not allowed hosts")
    expect(env["LATCHGATE_TTL_MAX"] == "10m", "env does nothing")


def documents_of(path):
    return {document["kind"]: document for document in yaml.safe_load_all(read(path))}


def rendered(values):
    with helm_python.Chart.load("deploy/helm") as chart:
        texts = chart.render(values, name="latchgate", namespace="latchgate").values()
    return {document["kind"]: document for text in texts for document in yaml.safe_load_all(text)}


def check_systemd():
    unit = read("deploy/latchgate.service")
    stop = re.search(r"^TimeoutStopSec=(\S+)$", unit, re.MULTILINE).group(1)
    expect(in_ms(stop) > setting("drain-timeout"), "systemd kills a node while it drains")
    command = shlex.split(re.search(r"^ExecStart=(.+)$", unit, re.MULTILINE).group(1))
    expect(latchgate(*command[1:], "--help").returncode == 0, f"the binary does not know {command[1:]}")
    verify = ["systemd-analyze", "verify"]
    if "--recursive-errors" in run("systemd-analyze", "--help").stdout:
        verify.append("--recursive-errors=no")
    # In the unit, the binary is where an operator installs it.
    here = re.sub(r"^ExecStart=\S+", f"ExecStart={os.path.realpath(BINARY)}", unit, flags=re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "latchgate.service")
        path.write_text(here)
        said = run(*verify, path)
    # Also other units of this machine are read. Their errors and warnings do not matter.
    expect(said.returncode == 0 and path.name not in said.stderr, f"deploy/latchgate.service: {said.stderr}")


# On one line: the help is wrapped at any place.
SERVE_HELP = " ".join(latchgate("serve", "--help").stdout.split())
# The same on one machine.
CLUSTER = "service/testkit/src/tier/stores.rs"
COMPOSE_TEXT = read("docker-compose.yml")
COMPOSE = interpolated(yaml.safe_load(COMPOSE_TEXT))
SERVICES = COMPOSE["services"]
ADMIN_KEY = latchgate("api-key", "generate").stdout.strip()


def main():
    dockerfile = read("deploy/Dockerfile")
    nodes = {name: service for name, service in SERVICES.items() if service["image"].startswith("latchgate:")}
    check_environment_file()
    check_services()
    check_nodes(nodes, dockerfile)
    check_stores()
    check_nginx(nodes)
    check_dockerfile(dockerfile)
    check_kubernetes()
    check_helm()
    check_systemd()
    validator = pathlib.Path(sys.executable).with_name("kubernetes-validate")
    said = run(str(validator), "--strict", *map(str, sorted(pathlib.Path("deploy/kubernetes").glob("*.yaml"))))
    expect(said.returncode == 0, f"deploy/kubernetes: {said.stdout}{said.stderr}")
    for complaint in WRONG:
        print(f"error: {complaint}", file=sys.stderr)
    sys.exit(1 if WRONG else 0)


main()
