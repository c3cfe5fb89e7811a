#!/bin/sh
# Starts Redis with the users of users.acl. PASSWORD there becomes $REDIS_PASSWORD (letters and digits), which is in no
# command line. More options of redis-server may follow.
set -eu
umask 077
here=$(dirname "$0")
acl=${TMPDIR:-/tmp}/users.acl
awk '{ gsub(/PASSWORD/, ENVIRON["REDIS_PASSWORD"]); print }' "$here/users.acl" > "$acl"
exec redis-server "$here/redis.conf" --aclfile "$acl" "$@"
