#!/usr/bin/env bash
# Tests the clients for Python, TypeScript, Go, Java and Rust against real nodes on a private Postgres: the scenarios of
# service/clients/SCENARIOS.md, with the clients of each language; what only one language has, in its own test runner, and the types of those for
# Python and TypeScript; tooz's and Verrou's own tests of our drivers; the programs of docs/GATE.md, in four languages; and `latchgate mcp` under the official SDKs. What lacks its toolchain or its packages, and cannot be given them
# here, is skipped by name. The last line is the sum: `N passed, N failed, N skipped`.
#
#   CLIENT_BINARY   a built `latchgate`; if absent, cargo builds one
#   --tools         installs what is needed, and ends
source "$(dirname "$0")/lib.sh"

ensure_packages node openssl pgbouncer postgres python3
missing=()
(ensure_packages go) || missing+=("the client for Go")
(ensure_packages java javac) || missing+=("the client for Java")
binary=${CLIENT_BINARY-}
if [[ -z $binary && ${1-} != --tools ]]; then
    cargo build --locked -p latchgate -p latchgate-testkit -p latchgate-client --bin latchgate --example guarded --example agent
    binary=${CARGO_TARGET_DIR:-target}/debug/latchgate
fi
python_tools types mypy==2.4.1
mypy=$TOOLS/mypy
# In a subshell: a tool that cannot be installed is no failure.
(python_tools tooz tooz==9.1.0 setuptools==84.2.1 fixtures==4.3.2 testtools==2.9.1 etcd3gw==2.7.0 sysv_ipc==1.2.0 pymemcache==4.0.0 redis==8.1.0) ||
    missing+=(tooz)
tooz=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools/tooz")/bin/python
python_tools guard 'psycopg[binary]==3.2.10'

# node_tools NAME PACKAGE@VERSION...: installs packages for Node into the target directory, once for each version; sets NODE_MODULES, to
# nothing if this machine reaches no registry.
node_tools() {
    local dir
    dir=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools/$1")
    shift
    NODE_MODULES=$dir/node_modules
    [[ $(cat "$dir/installed" 2>/dev/null) != "$*" ]] || return 0
    npm install --prefix "$dir" --ignore-scripts --no-audit --no-fund --no-save --no-package-lock --loglevel=error "$@" >&2 || NODE_MODULES=
    [[ -z $NODE_MODULES ]] || echo "$*" >"$dir/installed"
}

node_tools types-node typescript@5.9.3
tsc=${NODE_MODULES:+$NODE_MODULES/.bin/tsc}
# Verrou brings its tests for stores along; they run in Japa.
node_tools verrou-node @verrou/core@0.5.2 @japa/runner@4.5.0 @japa/assert@4.1.1
verrou=$NODE_MODULES
[[ -z $verrou ]] || ln -sfn "$PWD/service/clients/typescript" "$verrou/latchgate"
# What the programs to which docs/GATE.md leads need.
node_tools guard-node pg@8.16.3
PROGRAM_NODE_MODULES=$NODE_MODULES
[[ -z $PROGRAM_NODE_MODULES ]] || ln -sfn "$PWD/service/clients/typescript" "$PROGRAM_NODE_MODULES/latchgate"
# The official SDKs of the Model Context Protocol, for `latchgate mcp` and `mcp-gate`.
(python_tools mcp mcp==2.3.0) || missing+=("latchgate mcp under the SDK for Python")
mcp=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools/mcp")/bin/python
node_tools mcp-node @modelcontextprotocol/sdk@1.32.2 zod@4.6.7
export MCP_NODE_MODULES=$NODE_MODULES
(ensure_packages java jdbc) || true
PROGRAM_JDBC=$(find /usr/share/java/postgresql.jar 2>/dev/null || true)
[[ ${1-} != --tools ]] || exit 0
PROGRAM_RUST=$(realpath "${CARGO_TARGET_DIR:-target}/debug/examples/guarded" 2>/dev/null || true)
export PROGRAM_NODE_MODULES PROGRAM_JDBC PROGRAM_RUST
start_postgres
# As docs/OPERATIONS.md makes them, for this machine.
mkdir "$SCRATCH/tls"
grep '^openssl ' docs/OPERATIONS.md | sed 's/subjectAltName=[^ ]*/subjectAltName=DNS:localhost,IP:127.0.0.1/' >"$SCRATCH/tls/make"
(cd "$SCRATCH/tls" && bash -e make 2>log) || die "the commands of docs/OPERATIONS.md make no certificate: $(cat "$SCRATCH/tls/log")"
export CLIENT_TLS=$SCRATCH/tls LATCHGATE_CA=$SCRATCH/tls/ca.pem
CLIENT_BINARY=$(realpath "$binary")
export CLIENT_BINARY CLIENT_POSTGRES=$POSTGRES_URL
start_http node-a "$CLIENT_BINARY" serve --locks "$CLIENT_POSTGRES"
CLIENT_NODES=$HTTP_URL
start_http node-b "$CLIENT_BINARY" serve --locks "$CLIENT_POSTGRES"
export CLIENT_NODES=$CLIENT_NODES,$HTTP_URL
# The commands of the agents that make calls for the scenarios.
declare -A agents=([typescript]="node $PWD/service/clients/typescript/tests/agent.js")
if [[ " ${missing[*]} " != *" for Go"* ]]; then
    (cd service/clients/go && go test -c -o "$SCRATCH/go-agent" .)
    agents[go]="$SCRATCH/go-agent agent"
fi
if [[ " ${missing[*]} " != *" for Java"* ]]; then
    find service/clients/java/src -name '*.java' -exec \
        javac --release 17 -encoding UTF-8 -Xlint:all,-serial,-try -Werror -d "$SCRATCH/classes" {} +
    agents[java]="java -Dfile.encoding=UTF-8 -cp $SCRATCH/classes io.latchgate.Agent"
fi
if rust=$(realpath -e "${CARGO_TARGET_DIR:-target}/debug/examples/agent"); then
    agents[rust]=$rust
else
    missing+=("the client for Rust")
fi

# Most of the time the tests wait, so all files run at once.
files=() runners=()
run() {
    local name=$1
    shift
    files+=("$name")
    # Each runner has nodes of its own: more at once would be slow nodes, and the clients' bounds are in seconds.
    while (($(jobs -rp | grep -cxFf <(printf '%s\n' "${runners[@]}")) >= 4)); do sleep 0.2; done
    (set +e; timeout --kill-after=10 900 "$@" >"$SCRATCH/$name.log" 2>&1; echo $? >"$SCRATCH/$name.code") &
    runners+=($!)
}

# Not for Postgres. The shell may have forgotten those that have ended; how, is in their files.
await_runners() {
    ((${#runners[@]} == 0)) || wait "${runners[@]}" 2>/dev/null || true
    runners=()
}

run programs "$TOOLS/python" -B scripts/guard/test_programs.py
cd service/clients/python
for file in tests/test_*.py; do
    file=${file##*/}
    run "python-${file%.py}" python3 -B -m unittest -b "tests.${file%.py}"
    # The same scenarios with the client for asyncio, and with those of the other languages.
    case $file in
        test_locks.py | test_gate.py | test_faults.py | test_errors.py)
            run "python-aio-${file%.py}" env CLIENT_KIND=aio python3 -B -m unittest -b "tests.${file%.py}"
            for kind in "${!agents[@]}"; do
                run "$kind-${file%.py}" env "CLIENT_KIND=$kind" "CLIENT_AGENT=${agents[$kind]}" python3 -B -m unittest -b "tests.${file%.py}"
            done
            ;;
    esac
done
if [[ " ${missing[*]} " != *" tooz "* ]]; then
    cp -r . "$SCRATCH/python" # pip builds within the folder
    "$tooz" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --force-reinstall \
        "$SCRATCH/python" "$SCRATCH/python/adapters/tooz"
    start_http tooz "$CLIENT_BINARY" serve --locks "$CLIENT_POSTGRES"
    run python-tooz env "TOOZ_TEST_URL=${HTTP_URL/http/latchgate}" "$tooz" -B -m unittest -b tooz.tests.test_coordination.TestAPI
    run python-tooz-types bash -c "'$mypy' --strict --cache-dir /dev/null --python-executable '$tooz' adapters/tooz/latchgate_tooz.py &&
        echo 'Ran 1 test in all'"
fi
run python-types bash -c "'$mypy' --cache-dir /dev/null && echo 'Ran 1 test in all'"
cd ../typescript
for file in tests/*.test.js; do
    run "typescript-$(basename "$file" .test.js)" node --test --test-reporter=tap "$file"
done
if [[ -n $tsc ]]; then
    run typescript-types bash -c '"$1" -p . && echo "Ran 1 test in all"' types "$tsc"
else
    missing+=("the types of the client for TypeScript")
fi
if [[ -n $verrou ]]; then
    # The client is found beside Verrou, and Verrou beside the client.
    run verrou node --preserve-symlinks --preserve-symlinks-main "$verrou/latchgate/tests/verrou-suite.js"
else
    missing+=("the adapter for Verrou")
fi
if [[ " ${missing[*]} " != *" for Go"* ]]; then
    cd ../go
    run go env "TMPDIR=$SCRATCH" go test -count 1 -parallel 12 -v ./...
    run go-vet bash -c 'go vet ./... && [[ -z $(gofmt -l . | tee /dev/stderr) ]] && echo "Ran 1 test in all"'
fi
if [[ " ${missing[*]} " != *" for Java"* ]]; then
    run java java -Dfile.encoding=UTF-8 "-Djava.io.tmpdir=$SCRATCH" -cp "$SCRATCH/classes" io.latchgate.Scenarios
fi
cd ../../mcp/tests
# They are a load, beside which the others' bounds would pass.
for file in test_*.py; do
    await_runners
    [[ " ${missing[*]} " != *" latchgate mcp "* ]] || continue
    run "mcp-${file%.py}" env "PYTHONPATH=$PWD:$PWD/../../clients/python" "$mcp" -B -m unittest -b "${file%.py}"
done
if [[ -n $MCP_NODE_MODULES ]]; then
    run mcp-sdk node --test --test-reporter=tap sdk.test.js
else
    missing+=("latchgate mcp under the SDK for TypeScript")
fi
cd ../../..
await_runners

passed=0 failed=0 skipped=0
for name in "${files[@]}"; do
    log=$SCRATCH/$name.log code=$(<"$SCRATCH/$name.code")
    read -r ran bad left_out < <(awk '
        # unittest
        /^Ran [0-9]+ tests? in/ { ran = $2 }
        /^FAILED \(|^OK \(/ {
            gsub(/[(),]/, " ")
            for (i = 2; i <= NF; i++) {
                split($i, count, "=")
                if (count[1] == "failures" || count[1] == "errors") bad += count[2]
                if (count[1] == "skipped") left_out += count[2]
            }
        }
        # go
        /^--- (PASS|FAIL|SKIP): / {
            ran++
            if ($2 == "FAIL:") bad++
            if ($2 == "SKIP:") left_out++
        }
        # node
        /^# tests [0-9]+$/ { ran = $3 }
        /^# (fail|cancelled) [0-9]+$/ { bad += $3 }
        /^# (skipped|todo) [0-9]+$/ { left_out += $3 }
        END { print ran + 0, bad + 0, left_out + 0 }' "$log")
    # A runner that crashed, or that found no test, is a failure too.
    if ((code != 0 && bad == 0 || ran == 0)); then bad=$((bad + 1)) ran=$((ran + 1)); fi
    if ((bad > 0)); then
        say "$name failed:"
        cat "$log" >&2
    fi
    passed=$((passed + ran - bad - left_out)) failed=$((failed + bad)) skipped=$((skipped + left_out))
done
for name in "${missing[@]}"; do
    say "skipped: $name, because a toolchain or a registry of packages is missing"
    skipped=$((skipped + 1))
done
stop_all
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
