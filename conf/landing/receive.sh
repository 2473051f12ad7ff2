#!/usr/bin/env bash
# receive.sh SOURCE STATE: becomes pg_recvlogical, which appends the slot's changes to STATE/current. SIGINT ends it.
#
# Holds a lock on STATE/receiver.lock while it lives: the kernel releases the lock however the process ends, and the lock
# is visible from other containers. rotate.sh lands nothing that a process with this lock may still write to.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=state.sh
. "$(dirname "${BASH_SOURCE[0]}")/state.sh"

mkdir -p "$state"
exec 8>>"$state/receiver.lock"
flock --timeout 10 8 || { echo "$source: another receiver writes to $state" >&2; exit 75; }
# rotate.sh's signal would end a process that doesn't handle it yet.
trap '' HUP
read -ra pgoutput <<<"${PGOUTPUT:-}"
exec pg_recvlogical --dbname="${PGDATABASE:?}" --no-password --slot="${SLOT:?}" --start \
  --option=publication_names="${PUBLICATION:?}" ${pgoutput[@]+"${pgoutput[@]}"} \
  --file="$state/current" --fsync-interval=10 --status-interval=10
