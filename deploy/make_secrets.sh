#!/bin/sh
# Makes what compose.yaml mounts as secrets, once: files that exist are kept, so that it may be run again.
#
#     sh deploy/make_secrets.sh [FOLDER]       (deploy/secrets unless named; git and the image builder ignore that)
#
# The folder is closed to other users of this machine (0700). The files in it are readable by all (0444), because
# each is mounted alone into a container whose user is not the one who ran this: a bind mount keeps the owner.
#
# Two files are not mounted, and for you: helios_operator_key, with which you sign in at /login, and helios_client_key,
# which programs send to /v1. Helios gets their salted hashes alone, in helios_credentials.
set -eu
folder=${1:-$(dirname "$0")/secrets}
umask 077
mkdir -p "$folder"
chmod 700 "$folder"

# As many random bytes in hexadecimal: no character that a shell, a URL or libpq would read as something else.
random_hex() {
    value=$(od -An -vtx1 -N"$1" /dev/urandom | tr -d ' \n')
    [ ${#value} -eq $(($1 * 2)) ] || { echo "make_secrets: /dev/urandom gave too little" >&2; exit 1; }
    printf '%s' "$value"
}

# The text becomes the file as a whole, or not at all.
keep() {
    printf '%s' "$2" >"$folder/$1.new"
    chmod 444 "$folder/$1.new"
    mv "$folder/$1.new" "$folder/$1"
    echo "made $folder/$1"
}

sha256() {
    if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1
}

# A new key goes into its file, and what is kept of it to standard output, in the form of `helios keys`.
credential() {
    id=$(random_hex 6)
    salt=$(random_hex 16)
    key="helios_${id}_$(random_hex 32)"
    digest=$(printf '%s%s' "$salt" "$key" | sha256)
    keep "helios_$1_key" "$key" >&2
    printf '{"id": "%s", "name": "%s", "role": "%s", "salt": "%s", "digest": "%s", "created_at": "%s"}' \
        "$id" "first-$1" "$1" "$salt" "$digest" "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
}

for name in postgres_password helios_db_password grafana_db_password grafana_admin_password; do
    if [ -s "$folder/$name" ]; then
        echo "kept $folder/$name"
    else
        password=$(random_hex 32)
        keep "$name" "$password"
    fi
done

if [ -s "$folder/helios_credentials" ]; then
    echo "kept $folder/helios_credentials"
else
    operator=$(credential operator)
    client=$(credential client)
    secret=$(random_hex 32)
    keep helios_credentials "{\"version\": 1, \"secret\": \"$secret\", \"credentials\": [$operator, $client]}"
fi
