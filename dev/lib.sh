# shellcheck shell=bash
# Shared by the scripts in dev/ and .ci/; source it, do not run it.
# It sets `root` (the repository) and defines only functions.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { printf '%s\n' "$*" >&2; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Prints the header comment of the calling script, without its marks: that is its --help.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

have() { command -v "$1" >/dev/null 2>&1; }

# wait_until SECONDS COMMAND...: polls until the command succeeds; fails when the time is over.
wait_until() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.1
    done
}

# Runs a command as root, directly or through a sudo that asks nothing.
as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        sudo -n "$@"
    fi
}

can_be_root() { ((EUID == 0)) || { have sudo && sudo -n true 2>/dev/null; }; }

# apt_install REASON PACKAGE...: installs what is missing, or says exactly what to run and fails.
apt_install() {
    local reason=$1
    shift
    if ! have apt-get; then
        die "$reason. There is no apt-get here: install the equivalent of: $*"
    fi
    if ! can_be_root; then
        die "$reason. Run this, then try again: sudo apt-get update && sudo apt-get install -y $*"
    fi
    say "$reason: installing $*"
    as_root apt-get update -qq >&2 || say "apt-get update failed; trying with the lists that are here"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 ||
        die "could not install: $*"
}

need_python() {
    have python3 || apt_install "python3 is needed" python3
}

# What a build needs: cargo, and a C compiler for the few crates with C or assembly in them.
need_rust() {
    have cargo || die "cargo is needed: install a Rust toolchain, for example with rustup, then try again"
    have cc || apt_install "a C compiler is needed" gcc libc6-dev
}

# Prints where libfaketime is, which gives a process a wrong clock; installs it if it has to.
need_faketime() {
    find_faketime && return
    apt_install "libfaketime is needed" libfaketime
    find_faketime || die "libfaketime was installed, but is in none of the usual places"
}

find_faketime() {
    local library
    for library in /usr/lib/*/faketime/libfaketime.so.1 /usr/{lib,lib64,local/lib}/faketime/libfaketime.so.1; do
        [[ -e $library ]] || continue
        printf '%s\n' "$library"
        return
    done
    return 1
}

# The folder where cargo puts its results, wherever it is configured.
target_dir() {
    need_python
    cargo metadata --format-version 1 --no-deps --manifest-path "$root/Cargo.toml" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])'
}
