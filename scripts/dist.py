#!/usr/bin/env python3
"""Makes what is published, in target/packages: a .tar.gz, a .deb, a wheel and npm packages with the binary; the clients as their registries
take them; the image; a list of the binary's parts (CycloneDX); and SHA256SUMS. The same commit gives the same bytes.

    scripts/dist.py                       builds the binary, with the profile `dist`, for glibc 2.28 and later
    DIST_BINARY=latchgate scripts/dist.py takes this one
    scripts/dist.py sbom                  only the list of parts
"""

import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
DIST = TARGET / "packages"
CLIENTS = ROOT / "service/clients"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
LICENSES = ["LICENSE-MIT", "LICENSE-APACHE"]
GLIBC_MINOR = 28


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, **options).stdout


EPOCH = int(run("git", "log", "-1", "--format=%ct", cwd=ROOT))
os.environ["SOURCE_DATE_EPOCH"] = str(EPOCH)


def tar(entries, prefix=""):
    """The bytes of an archive of (name, bytes, mode), whatever the clock, the user and the order."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content, mode in sorted(entries):
            entry = tarfile.TarInfo(prefix + name)
            entry.size, entry.mode, entry.mtime = len(content), mode, EPOCH
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def zipped(path, entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in entries:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)


def files(folder, *patterns):
    """(name, bytes, mode) of those that git knows, below the folder."""
    names = run("git", "ls-files", "-z", *patterns, cwd=folder).decode().split("\0")[:-1]
    return [(name, (folder / name).read_bytes(), 0o644) for name in names]


def licenses(prefix=""):
    return [(prefix + name, (ROOT / name).read_bytes(), 0o644) for name in LICENSES]


def built():
    """The binary. Zig links it to an old glibc, whatever this machine has."""
    if "DIST_BINARY" in os.environ:
        return pathlib.Path(os.environ["DIST_BINARY"]).absolute()
    tools = TARGET / "tools/zig"
    if not (tools / "bin/cargo-zigbuild").exists():
        run(sys.executable, "-m", "venv", tools)
        run(tools / "bin/pip", "install", "--quiet", "ziglang==0.15.1", "cargo-zigbuild==0.24.1")
    homes = {ROOT: "/latchgate", pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo")): "/cargo"}
    env = os.environ | {
        "PATH": f"{tools / 'bin'}:{os.environ['PATH']}",
        # No path of this machine gets into the binary.
        "RUSTFLAGS": " ".join(f"--remap-path-prefix={path}={name}" for path, name in homes.items()),
        "CFLAGS": " ".join(f"-ffile-prefix-map={path}={name}" for path, name in homes.items()),
    }
    triple = "x86_64-unknown-linux-gnu"
    run("cargo", "zigbuild", "--profile", "dist", "--locked", "-p", "latchgate", "--target", f"{triple}.2.{GLIBC_MINOR}",
        "--target-dir", TARGET, env=env, cwd=ROOT)  # fmt: skip
    binary = TARGET / triple / "dist/latchgate"
    newest = max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", binary.read_bytes()))
    if newest > GLIBC_MINOR:
        sys.exit(f"error: the binary needs glibc 2.{newest}")
    return binary


def system_files(binary):
    """(name below /usr or /etc, bytes, mode) of what belongs to the binary on a machine."""
    with tempfile.TemporaryDirectory() as pages:
        run(binary, "man", pages)
        manual = [(f"share/man/man1/{page.name}", page.read_bytes(), 0o644) for page in pathlib.Path(pages).iterdir()]
    places = {
        "bash": "share/bash-completion/completions/latchgate",
        "zsh": "share/zsh/vendor-completions/_latchgate",
        "fish": "share/fish/vendor_completions.d/latchgate.fish",
    }
    completions = [(place, run(binary, "completions", shell), 0o644) for shell, place in places.items()]
    return [("bin/latchgate", binary.read_bytes(), 0o755), *manual, *completions]


def make_tar(binary):
    unit = ("latchgate.service", (ROOT / "deploy/latchgate.service").read_bytes(), 0o644)
    name = f"latchgate-{VERSION}-x86_64-linux"
    data = tar([*system_files(binary), unit, *licenses()], f"{name}/")
    (DIST / f"{name}.tar.gz").write_bytes(gzip.compress(data, mtime=0))


CONTROL = f"""Package: latchgate
Version: {VERSION}
Architecture: amd64
Maintainer: The Latchgate authors <latchgate@localhost>
Section: net
Priority: optional
Depends: libc6 (>= 2.{GLIBC_MINOR})
Recommends: ca-certificates
Description: distributed locks and an idempotency gate over HTTP
 Any program that can send an HTTP request can take a lock, or ask whether
 work has been done before. State lives in Postgres, Redis or an SQLite file.
"""
SETTINGS = b"""# Settings of the node, one LATCHGATE_...=value a line: `latchgate serve --help` names them. Then: systemctl restart latchgate
# Without any, it listens on 127.0.0.1:7070 and keeps its data in /var/lib/latchgate/latchgate.db.
"""
# In a container nothing is started.
HAS_SYSTEMD = "#!/bin/sh\nset -e\n[ -d /run/systemd/system ] || exit 0\n"
SCRIPTS = {
    "postinst": HAS_SYSTEMD + "systemctl daemon-reload\nsystemctl enable latchgate\nsystemctl restart latchgate\n",
    "prerm": HAS_SYSTEMD + '[ "$1" != remove ] || systemctl disable --now latchgate\n',
    "postrm": HAS_SYSTEMD + "systemctl daemon-reload\n",
}


def make_deb(binary):
    unit = (ROOT / "deploy/latchgate.service").read_text().replace("/usr/local/bin/", "/usr/bin/").encode()
    copyright = b"\n\n".join(content for _, content, _ in licenses())
    entries = [("usr/" + name, content, mode) for name, content, mode in system_files(binary)]
    entries = [(n + ".gz", gzip.compress(c, mtime=0), m) if "/man1/" in n else (n, c, m) for n, c, m in entries]
    entries += [
        ("usr/lib/systemd/system/latchgate.service", unit, 0o644),
        ("usr/share/doc/latchgate/copyright", copyright, 0o644),
        # It may have passwords.
        ("etc/latchgate/latchgate.env", SETTINGS, 0o600),
        ("DEBIAN/conffiles", b"/etc/latchgate/latchgate.env\n", 0o644),
        ("DEBIAN/control", CONTROL.encode(), 0o644),
        *((f"DEBIAN/{name}", text.encode(), 0o755) for name, text in SCRIPTS.items()),
    ]
    with tempfile.TemporaryDirectory() as stage:
        lay(pathlib.Path(stage), entries)
        os.chmod(stage, 0o755)
        run("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", stage, DIST / f"latchgate_{VERSION}_amd64.deb")


def lay(folder, entries):
    for name, content, mode in entries:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


def make_python(binary):
    folder = CLIENTS / "python"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    headers = {
        "Metadata-Version": "2.1",
        "Name": project["name"],
        "Version": VERSION,
        "Summary": project["description"],
        "License": project["license"]["text"],
        "Requires-Python": project["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    lines = [f"{name}: {value}\n" for name, value in headers.items()]
    lines += [f"Classifier: {each}\n" for each in project["classifiers"]]
    metadata = ("".join(lines) + "\n" + (folder / "README.md").read_text()).encode()
    source = [*files(folder, "pyproject.toml", "README.md", "latchgate"), ("PKG-INFO", metadata, 0o644), *licenses()]
    (DIST / f"latchgate-{VERSION}.tar.gz").write_bytes(gzip.compress(tar(source, f"latchgate-{VERSION}/"), mtime=0))
    program = [(f"latchgate-{VERSION}.data/scripts/latchgate", binary.read_bytes(), 0o755)]
    for tag, more in (("py3-none-any", []), (f"py3-none-manylinux_2_{GLIBC_MINOR}_x86_64", program)):
        info = f"latchgate-{VERSION}.dist-info"
        is_pure = "false" if more else "true"
        wheel = f"Wheel-Version: 1.0\nGenerator: latchgate\nRoot-Is-Purelib: {is_pure}\nTag: {tag}\n".encode()
        entries = [*files(folder, "latchgate"), *more, (f"{info}/METADATA", metadata, 0o644), (f"{info}/WHEEL", wheel, 0o644)]
        entries += licenses(f"{info}/licenses/")
        record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content, _ in entries)
        entries.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
        zipped(DIST / f"latchgate-{VERSION}-{tag}.whl", entries)


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def make_npm(binary):
    package = json.loads((CLIENTS / "typescript/package.json").read_text())
    common = {name: package[name] for name in ("version", "license", "description")}
    platform = {"name": "latchgate-linux-x64", **common, "os": ["linux"], "cpu": ["x64"], "libc": ["glibc"], "files": ["latchgate", *LICENSES]}
    program = [("latchgate", binary.read_bytes(), 0o755)]
    package |= {"bin": {"latchgate": "bin/latchgate.js"}, "optionalDependencies": {platform["name"]: VERSION}}
    package["files"] += ["bin", *LICENSES]
    del package["devDependencies"], package["scripts"]
    launcher = ("bin/latchgate.js", (ROOT / "deploy/npm/latchgate.js").read_bytes(), 0o755)
    client = [*files(CLIENTS / "typescript", "src", "adapters", "README.md"), launcher]
    for contents, entries in ((platform, program), (package, client)):
        with tempfile.TemporaryDirectory() as stage:
            text = json.dumps(contents, indent=2).encode()
            lay(pathlib.Path(stage), [*entries, ("package.json", text, 0o644), *licenses()])
            run("npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", DIST, cwd=stage)


def make_go():
    module = re.search(r"^module (\S+)$", (CLIENTS / "go/go.mod").read_text(), re.MULTILINE)[1]
    entries = [*files(CLIENTS / "go"), *licenses()]
    zipped(DIST / f"latchgate-go-{VERSION}.zip", [(f"{module}@v{VERSION}/{n}", c, m) for n, c, m in entries])


def make_java():
    sources = CLIENTS / "java/src/main/java"
    names = [str(sources / name) for name, _, _ in files(sources)]
    shutil.copy(CLIENTS / "java/pom.xml", DIST / f"latchgate-{VERSION}.pom")
    date = run("date", "--utc", f"--date=@{EPOCH}", "+%Y-%m-%dT%H:%M:%SZ").decode().strip()
    with tempfile.TemporaryDirectory() as stage:
        run("javac", "--release", "17", "-encoding", "UTF-8", "-d", f"{stage}/classes", *names)
        run("javadoc", "-quiet", "-notimestamp", "-Xdoclint:none", "-encoding", "UTF-8", "-d", f"{stage}/docs", *names)
        for kind, folder in (("", f"{stage}/classes"), ("-javadoc", f"{stage}/docs"), ("-sources", sources)):
            run("jar", "--create", f"--date={date}", "--file", DIST / f"latchgate-{VERSION}{kind}.jar", "-C", folder, ".")


def make_image(binary):
    """An OCI archive: the binary, the root certificates, and this machine's glibc, to which the binary is linked."""
    entries = [("latchgate", binary.read_bytes(), 0o755)]
    entries.append(("etc/ssl/certs/ca-certificates.crt", pathlib.Path("/etc/ssl/certs/ca-certificates.crt").read_bytes(), 0o644))
    for library in re.findall(r"(/\S+) \(0x", run("ldd", binary).decode()):
        entries.append((library[1:], pathlib.Path(library).read_bytes(), 0o755))
    text = (ROOT / "deploy/Dockerfile").read_text().rpartition("FROM scratch")[2]
    said = dict(re.findall(r"^(\w+) (.+)$", text, re.MULTILINE))
    health = dict(re.findall(r"--([a-z-]+)=(\d+)", said["HEALTHCHECK"]))
    second = 1_000_000_000
    config = {
        "User": said["USER"],
        "Env": [said["ENV"]],
        "ExposedPorts": {f"{said['EXPOSE']}/tcp": {}},
        "Entrypoint": json.loads(said["ENTRYPOINT"]),
        "Cmd": json.loads(said["CMD"]),
        "Healthcheck": {
            "Test": ["CMD", *json.loads(said["HEALTHCHECK"].partition(" CMD ")[2])],
            "Interval": int(health["interval"]) * second,
            "Timeout": int(health["timeout"]) * second,
            "StartPeriod": int(health["start-period"]) * second,
            "Retries": int(health["retries"]),
        },
        "Labels": {"org.opencontainers.image.version": VERSION, "org.opencontainers.image.licenses": "MIT OR Apache-2.0"},
    }
    layer = tar(entries)
    blobs = {}

    def blob(kind, content, **more):
        name = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{name}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{name}", "size": len(content), **more}

    of_image = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(of_image).encode()),
        "layers": [blob("layer.v1.tar+gzip", gzip.compress(layer, mtime=0))],
    }
    named = {"org.opencontainers.image.ref.name": VERSION, "io.containerd.image.name": f"latchgate:{VERSION}"}
    index = {"schemaVersion": 2, "manifests": [blob("manifest.v1+json", json.dumps(manifest).encode(), annotations=named)]}
    blobs |= {"index.json": json.dumps(index).encode(), "oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    (DIST / f"latchgate-{VERSION}-oci.tar").write_bytes(tar((name, content, 0o644) for name, content in blobs.items()))


def make_sbom():
    listing = run("cargo", "tree", "--locked", "-p", "latchgate", "-e", "normal", "--prefix", "none", "--format", "{p}|{l}",
                  "--target", "x86_64-unknown-linux-gnu", cwd=ROOT).decode()  # fmt: skip
    parts = sorted({tuple(re.match(r"(\S+) v(\S+).*\|(.*?)(?: \(\*\))?$", line).groups()) for line in listing.splitlines()})
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    components = []
    for name, version, license in parts:
        component = {"type": "library", "name": name, "version": version, "purl": f"pkg:cargo/{name}@{version}"}
        if license:
            component["licenses"] = [{"expression": license.replace("/", " OR ")}]
        if checksum := checksums[name, version]:
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    product = {"type": "application", "name": "latchgate", "version": VERSION}
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": product}, "components": components}
    (DIST / f"latchgate-{VERSION}.cdx.json").write_text(json.dumps(document, indent=1) + "\n")


def main():
    os.umask(0o022)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(parents=True)
    make_sbom()
    if sys.argv[1:] == ["sbom"]:
        return print(DIST)
    binary = built()
    for make in (make_tar, make_deb, make_python, make_npm, make_image):
        make(binary)
    make_go()
    make_java()
    made = sorted(DIST.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums, end="")


main()
