#!/bin/sh
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# find_python.sh VERSION...   prints the first interpreter of the first of these versions that really runs
#
# "Really runs", because a version manager's shim answers to `command -v python3.12` and then fails, while the
# interpreter lies unused in a folder of the manager. So every candidate is started and must be able to make a
# virtual environment. Shell, because no Python is known yet.

works() { # INTERPRETER VERSION: prints the interpreter proper, not the shim that led to it
    "$1" -c 'import ensurepip, sys, venv
if "%d.%d" % sys.version_info[:2] != sys.argv[1] or sys.prefix != sys.base_prefix: sys.exit(1)
print(sys.executable)' "$2" 2>/dev/null </dev/null
}

folders() { # one a line: what PATH has, then where interpreters commonly lie
    printf '%s\n' "$PATH" | tr ':' '\n'
    # a folder of shims tells where its manager keeps the interpreters, whatever HOME says
    shims=$(printf '%s\n' "$PATH" | tr ':' '\n' | sed -n 's|/shims/*$||p')
    for root in "$PYENV_ROOT" "$(pyenv root 2>/dev/null)" "$HOME/.pyenv" $shims; do
        [ -n "$root" ] && printf '%s\n' "$root"/versions/*/bin "$root"/installs/python/*/bin
    done
    uv=$(uv python dir 2>/dev/null) && printf '%s\n' "$uv"/*/bin
    printf '%s\n' "$HOME"/.local/share/uv/python/*/bin "$HOME"/.local/bin \
        /usr/local/bin /usr/bin /opt/python*/bin /opt/*/bin /opt/*/*/bin
}

for version in "$@"; do
    for folder in $(folders); do
        candidate=$folder/python$version
        [ -x "$candidate" ] && works "$candidate" "$version" && exit 0
    done
done
exit 1
