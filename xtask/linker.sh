#!/bin/sh
# The linker of this repository (.cargo/config.toml): `cc`, brought here first where it is missing.
command -v cc >/dev/null 2>&1 && exec cc "$@"

# rustc shows what a linker prints only when it fails; a person at a terminal shall see more.
say() {
    if (: >/dev/tty) 2>/dev/null; then echo "==> $*" >/dev/tty; else echo "==> $*" >&2; fi
}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    # Cargo links several programs at a time: the first one installs, the others wait for it.
    exec 9>/tmp/xdp-agg-install-linker.lock && flock 9
    if ! command -v cc >/dev/null 2>&1; then
        say "missing: a C linker (cc); installing the Debian packages gcc libc6-dev"
        apt-get update -q >&2 && apt-get install -q -y --no-install-recommends gcc libc6-dev >&2
    fi
    exec 9>&-
    command -v cc >/dev/null 2>&1 && exec cc "$@"
fi
echo "missing: a C linker (cc). Install one, for example with \`sudo apt-get install gcc libc6-dev\`" \
    "or \`sudo dnf install gcc\`, then run this again." >&2
exit 1
