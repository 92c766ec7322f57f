#!/bin/sh
# Makes the passwords that compose.yaml mounts, once: files that exist are kept, so that it may be run again.
#
#     sh deploy/make_secrets.sh [FOLDER]       (deploy/secrets unless named; git and the image builder ignore that)
#
# The folder is closed to other users of this machine (0700). The files in it are readable by all (0444), because
# each is mounted alone into a container whose user is not the one who ran this: a bind mount keeps the owner.
set -eu
folder=${1:-$(dirname "$0")/secrets}
umask 077
mkdir -p "$folder"
chmod 700 "$folder"
for name in postgres_password helios_db_password grafana_db_password grafana_admin_password; do
    file=$folder/$name
    if [ -s "$file" ]; then
        echo "kept $file"
        continue
    fi
    # 32 random bytes in hexadecimal: no character that a shell, a URL or libpq would read as something else.
    value=$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \n')
    [ ${#value} -eq 64 ] || { echo "make_secrets: /dev/urandom gave too little" >&2; exit 1; }
    printf '%s' "$value" >"$file.new"
    chmod 444 "$file.new"
    mv "$file.new" "$file"
    echo "made $file"
done
