#!/usr/bin/env bash
# Checks that the binary builds with the oldest Rust that README.md and Cargo.toml name. rustup installs it if it is missing.
source "$(dirname "$0")/lib.sh"

ensure_packages cc
oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
grep -q "Rust toolchain ($oldest or later)" README.md || die "README.md names another Rust than Cargo.toml, $oldest"
grep -q "^ARG RUST_VERSION=$oldest\$" deploy/Dockerfile || die "deploy/Dockerfile names another Rust than Cargo.toml, $oldest"
if ! rustc "+$oldest" --version >/dev/null 2>&1 && ! rustup toolchain install "$oldest" --profile minimal --no-self-update; then
    say "not checked: the build with Rust $oldest, which rustup cannot install here"
    exit
fi
cargo "+$oldest" check --locked --quiet -p latchgate
