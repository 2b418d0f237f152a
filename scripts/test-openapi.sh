#!/usr/bin/env bash
# Checks openapi/openapi.json as its users do: a linter, clients in Python, TypeScript and Java that are generated from it and drive a
# node, and Schemathesis, which sends what the description allows and what it forbids, without and with API keys. The last line is
# the sum: `N passed, N failed, N skipped`.
#
#   OPENAPI_BINARY   a built `latchgate`; if absent, cargo builds one
#   OPENAPI_TOOLS    where the tools are installed, in the versions of service/testkit/openapi (target/openapi-tools)
#   SECONDS_EACH     how long each of the two long runs of Schemathesis lasts. If absent, as in CI, they do not depend on time: every run
#                    sends the same requests, on any machine
#   SEED             what Schemathesis chooses by: with SECONDS_EACH a random number, which the output of a failed run names, and else 1
source "$(dirname "$0")/lib.sh"

here=$PWD/service/testkit/openapi
tools=$(realpath -m "${OPENAPI_TOOLS:-${CARGO_TARGET_DIR:-target}/openapi-tools}")
api=$PWD/openapi/openapi.json
results=$SCRATCH/results
touch "$results"

# check NAME COMMAND...: one result. The output of a failed command is shown.
check() {
    local name=$1 log=$SCRATCH/check.log began=$SECONDS
    shift
    if "$@" >"$log" 2>&1; then
        echo "ok $name" >>"$results"
        say "ok: $name ($((SECONDS - began)) s)"
    else
        echo "not ok $name" >>"$results"
        say "FAILED: $name"
        tail -n 200 "$log" >&2
    fi
}

# drive LANGUAGE COMMAND...: a driver prints a line for each result. One that ends early, or does not end, has failed.
drive() {
    local language=$1 log=$SCRATCH/drive.log code=0
    shift
    timeout --kill-after=10 120 "$@" >"$log" 2>&1 || code=$?
    grep -E '^(not )?ok ' "$log" >>"$results" || code=1
    if ((code != 0)) || grep -q '^not ok ' "$log"; then
        ((code == 0)) || echo "not ok $language: the driver ended with code $code" >>"$results"
        say "FAILED: the client in $language"
        tail -n 60 "$log" >&2
    else
        say "ok: the client in $language, $(grep -c '^ok ' "$log") results"
    fi
}

install_tools() {
    local wanted
    wanted=$(cat "$here"/requirements.txt "$here"/package-lock.json | sha256sum)
    [[ $(cat "$tools/installed" 2>/dev/null) != "$wanted" ]] || return 0
    say "installing the tools into $tools"
    rm -rf "$tools"
    mkdir -p "$tools"
    python3 -m venv "$tools/python" || die "python3 cannot make a virtual environment: install python3-venv"
    "$tools/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt" ||
        die "pip cannot install $here/requirements.txt: does this machine reach a package index?"
    cp "$here"/package.json "$here"/package-lock.json "$tools"
    (cd "$tools" && npm ci --silent --ignore-scripts --no-audit --no-fund) ||
        die "npm cannot install $here/package-lock.json: does this machine reach a package registry?"
    echo "$wanted" >"$tools/installed"
}

lint() { "$tools/node_modules/.bin/redocly" lint --config "$here/redocly.yaml" "$api"; }

generate_python() {
    mkdir -p "$SCRATCH/python"
    PATH=$tools/python/bin:$PATH openapi-python-client generate --meta none --path "$api" \
        --output-path "$SCRATCH/python/latchgate_client"
}

compile_typescript() {
    local dir=$SCRATCH/typescript
    mkdir -p "$dir"
    cp "$here/drive.ts" "$here/tsconfig.json" "$dir"
    echo '{ "type": "module" }' >"$dir/package.json"
    ln -sfn "$tools/node_modules" "$dir/node_modules"
    "$tools/node_modules/.bin/openapi-typescript" "$api" --output "$dir/api.d.ts" &&
        "$tools/node_modules/.bin/tsc" --project "$dir"
}

compile_java() {
    local dir=$SCRATCH/java
    java -jar "$jar" generate --generator-name java --library native --input-spec "$api" --output "$dir" \
        --api-package latchgate.api --model-package latchgate.model --invoker-package latchgate \
        --additional-properties openApiNullable=false,documentationProvider=none,useJakartaEe=true,hideGenerationTimestamp=true \
        --global-property apiTests=false,modelTests=false,apiDocs=false,modelDocs=false || return
    # The generator's own archive has Jackson, which its clients need, but not these annotations.
    mkdir -p "$dir/jakarta/annotation"
    local name
    for name in Generated Nonnull Nullable; do
        echo "package jakarta.annotation; public @interface $name { String[] value() default {}; String comments() default \"\"; }" \
            >"$dir/jakarta/annotation/$name.java"
    done
    find "$dir/src/main" "$dir/jakarta" -name '*.java' >"$dir/files"
    javac -nowarn -proc:none -encoding UTF-8 -cp "$jar" -d "$dir/out" @"$dir/files" "$here/Drive.java"
}

# fuzz URL DOCUMENT ARGS...: in $SCRATCH, because Schemathesis leaves files where it runs.
fuzz() (
    local url=$1 document=$2
    shift 2
    cd "$SCRATCH"
    PYTHONHASHSEED=0 timeout --kill-after=10 "$((600 + ${SECONDS_EACH:-0}))" "$tools/python/bin/schemathesis" \
        --config-file "$SCRATCH/schemathesis.toml" run "$document" --url "$url" "${choice[@]}" \
        --generation-database none --suppress-health-check too_slow --continue-on-failure "$@"
)

cp "$here/schemathesis.toml" "$SCRATCH"
if [[ -n ${SECONDS_EACH-} ]]; then
    choice=(--seed "${SEED:-$RANDOM}" --max-time "$SECONDS_EACH")
else
    choice=(--seed "${SEED:-1}" --max-examples 10)
    # Answers have ids of the node's making and times.
    printf '\n[phases.%s.extra-data-sources]\nresponses = false\n' coverage fuzzing >>"$SCRATCH/schemathesis.toml"
fi

# A stream of events never ends. After a hold-off no lock would be granted to the requests that follow, so it has a run of its own.
# With an API key of a request's making, the other requests would need one.
apart=(--exclude-operation-id watchLock --exclude-operation-id watchLocks --exclude-operation-id setHoldOff)

ensure_packages cc curl java javac jq node npm python3-venv
install_tools
jar=$(echo "$tools"/python/lib/python3*/site-packages/openapi_generator_cli/openapi-generator.jar)
[[ -f $jar ]] || die "$jar is missing"
binary=${OPENAPI_BINARY:-}
if [[ -z $binary ]]; then
    cargo build --locked --quiet --workspace
    binary=${CARGO_TARGET_DIR:-target}/debug/latchgate
fi

# All that the description allows, except long waits.
limits=(--wait-max 100ms --ttl-max 365d --operation-ttl-max 365d)
api_key=lgk_0123456789ab_c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee000033df08
start_http node "$binary" serve --locks "sqlite:$SCRATCH/node.db"
open_url=$HTTP_URL
LATCHGATE_ADMIN_API_KEY=$api_key start_http guarded "$binary" serve --locks "sqlite:$SCRATCH/guarded.db"
guarded_url=$HTTP_URL
start_http fuzzed "$binary" serve --locks "sqlite:$SCRATCH/fuzzed.db" "${limits[@]}"
fuzzed_url=$HTTP_URL
LATCHGATE_ADMIN_API_KEY=$api_key start_http fuzzed-guarded "$binary" serve --locks "sqlite:$SCRATCH/fuzzed-guarded.db" "${limits[@]}"
fuzzed_guarded_url=$HTTP_URL

check "redocly lint" lint
check "generate a client in Python" generate_python
drive Python env PYTHONPATH="$SCRATCH/python" "$tools/python/bin/python" "$here/drive.py" "$open_url"
drive "Python, with an API key" env PYTHONPATH="$SCRATCH/python" "$tools/python/bin/python" "$here/drive.py" "$guarded_url" "$api_key"
check "generate and compile a client in TypeScript" compile_typescript
drive TypeScript node "$SCRATCH/typescript/out/drive.js" "$guarded_url" "$api_key"
check "generate and compile a client in Java" compile_java
# Before 18, Java reads answers in the encoding of the locale.
drive Java java -Dfile.encoding=UTF-8 -cp "$SCRATCH/java/out:$jar" Drive "$guarded_url" "$api_key"

# Without API keys, requests need none.
jq 'del(.paths[][].security) | del(.components.securitySchemes)' "$api" >"$SCRATCH/open.json"
check "schemathesis without API keys" \
    fuzz "$fuzzed_url" "$SCRATCH/open.json" "${apart[@]}" --exclude-operation-id createApiKey
check "schemathesis with API keys" \
    fuzz "$fuzzed_guarded_url" "$api" "${apart[@]}" --header "Authorization: Bearer $api_key"
[[ -z ${SECONDS_EACH-} ]] || choice[3]=5
check "schemathesis of a hold-off" fuzz "$fuzzed_url" "$SCRATCH/open.json" --include-operation-id setHoldOff
for name in fuzzed fuzzed-guarded; do
    check "$name has not panicked" bash -c "! grep -n -e panicked -e 'internal error' '$ROOM/$name.log'"
done

passed=$(grep -c '^ok ' "$results" || true)
failed=$(grep -c '^not ok ' "$results" || true)
stop_all
echo "$passed passed, $failed failed, 0 skipped"
((failed == 0 && passed > 0))
