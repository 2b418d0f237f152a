#!/usr/bin/env bash
# Installs each package of target/packages (`make dist`) in a fresh Debian 12 without Rust, and takes the first lock there, within 60 s of
# the first command. As root, with Debian's mirror.
#
#   DEBIAN_ROOT=DIRECTORY   such a Debian with npm and python3-venv; if absent, mmdebstrap makes one
source "$(dirname "$0")/lib.sh"

ensure_packages ip jq mmdebstrap
packages=$(realpath "${CARGO_TARGET_DIR:-target}/packages")
(cd "$packages" && sha256sum --quiet --check SHA256SUMS) || die "$packages is not what \`make dist\` has made"
debian=${DEBIAN_ROOT:-$SCRATCH/debian}
[[ -d $debian ]] ||
    mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --include=npm,python3-venv bookworm "$debian" || die "mmdebstrap fails"
mkdir -p "$SCRATCH"/{oci,image/proc}
tar -C "$SCRATCH/oci" -xf "$packages"/*-oci.tar
blob() { jq -r "$2 | sub(\"^sha256:\"; \"blobs/sha256/\")" "$SCRATCH/oci/$1"; }
tar -C "$SCRATCH/image" -xzf "$SCRATCH/oci/$(blob "$(blob index.json '.manifests[0].digest')" '.layers[0].digest')"
(($(stat -c %s "$packages"/*-oci.tar) < 40000000)) || die "the image has more than 40 MB"

passed=0 failed=0
# first_lock NAME ROOT INSTALL LATCHGATE: on top of the root, in a network and a tree of processes of its own. What it has written is gone
# afterwards.
first_lock() {
    local here=$SCRATCH/$1
    mkdir -p "$here"/{new,work,root}
    say "$1"
    # shellcheck disable=SC2016 # variables of the inner shell
    if ROOT=$2 HERE=$here PACKAGES=$packages INSTALL=$3 LATCHGATE=$4 timeout 60 \
        unshare --net --pid --mount --fork --kill-child bash -euc '
            mount -t overlay -o "lowerdir=$ROOT,upperdir=$HERE/new,workdir=$HERE/work" overlay "$HERE/root"
            cd "$HERE/root"
            mkdir -p packages data dev && mount --bind "$PACKAGES" packages && mount --rbind /dev dev
            mount -t proc proc proc && ip link set lo up
            [[ -z $INSTALL ]] || chroot . bash -euc "$INSTALL"
            chroot . $LATCHGATE serve --locks sqlite:/data/latchgate.db >&2 &
            until chroot . $LATCHGATE health; do sleep 0.2; done 2>/dev/null
            chroot . $LATCHGATE lock deploy -- $LATCHGATE --version' >"$here/out" 2>"$here/err" && grep -q '^latchgate [0-9]' "$here/out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "$1 failed:"
        cat "$here/out" "$here/err" >&2
    fi
}

first_lock tar.gz "$debian" 'tar -C /usr/local --strip-components 1 -xzf /packages/latchgate-*-x86_64-linux.tar.gz' latchgate
first_lock deb "$debian" 'dpkg -i /packages/latchgate_*.deb; test -e /usr/share/man/man1/latchgate-lock.1.gz -a -e /etc/latchgate/latchgate.env' latchgate
first_lock wheel "$debian" 'python3 -m venv /opt/venv
    /opt/venv/bin/pip install --no-index --find-links /packages latchgate
    /opt/venv/bin/python -c "import latchgate; latchgate.Client()"' /opt/venv/bin/latchgate
first_lock npm "$debian" 'cd /opt && npm install --offline --no-audit --no-fund /packages/latchgate-linux-x64-*.tgz /packages/latchgate-[0-9]*.tgz
    node --input-type=module --eval "import { Client } from \"latchgate\"; new Client()"' /opt/node_modules/.bin/latchgate
first_lock image "$SCRATCH/image" '' /latchgate
stop_all
echo "$passed passed, $failed failed, 0 skipped"
((failed == 0))
