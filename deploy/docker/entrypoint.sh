#!/bin/sh
# Runs `helios ARGUMENTS` in the container, after three things that only the start can do:
#
# - The scheduler's kernels, compiled when the image was built, are laid into the data volume: numba reads a cache only
#   where it may also write, and the image is read-only. On a processor of another kind than the builder's they are
#   compiled again (one to two minutes, once), and kept in the volume.
# - HELIOS_DATABASE_PASSWORD_FILE becomes a password file of libpq in memory, so that the password is neither in the
#   command line nor in the environment nor in a URL that is stored or printed.
# - HELIOS_FIRST_CREDENTIALS_FILE is laid where --credentials-file names one that is not there yet: a mounted file cannot
#   be replaced as a whole, which is how `helios keys` changes the one that it is given.
set -eu

compiled=${HELIOS_COMPILED_KERNELS:-/opt/helios/kernels}
if [ -n "${NUMBA_CACHE_DIR:-}" ] && [ -d "$compiled" ]; then
    mkdir -p "$NUMBA_CACHE_DIR"
    for made in "$compiled"/*/; do
        name=$(basename "$made")
        if [ -d "$made" ] && [ ! -d "$NUMBA_CACHE_DIR/$name" ]; then
            rm -rf "$NUMBA_CACHE_DIR/.$name.new"
            cp -R "$made" "$NUMBA_CACHE_DIR/.$name.new"
            mv "$NUMBA_CACHE_DIR/.$name.new" "$NUMBA_CACHE_DIR/$name"
        fi
    done
fi

if [ -n "${HELIOS_DATABASE_PASSWORD_FILE:-}" ]; then
    PGPASSFILE=${TMPDIR:-/tmp}/pgpass
    export PGPASSFILE
    # A colon or a backslash in a password is escaped by a backslash. libpq wants the file closed to others.
    (umask 077 && sed -e 's/[\\:]/\\&/g' -e 's/^/*:*:*:*:/' -e 1q "$HELIOS_DATABASE_PASSWORD_FILE" >"$PGPASSFILE")
fi

if [ -n "${HELIOS_FIRST_CREDENTIALS_FILE:-}" ]; then
    option=
    for word in "$@"; do
        if [ "$option" = --credentials-file ] && [ ! -e "$word" ]; then
            mkdir -p "$(dirname "$word")"
            (umask 077 && cat "$HELIOS_FIRST_CREDENTIALS_FILE" >"$word.first")
            mv "$word.first" "$word"
        fi
        option=$word
    done
fi

exec helios "$@"
