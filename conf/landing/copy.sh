#!/usr/bin/env bash
# copy.sh SOURCE STATE: lands what the slot has by now, with psql alone, as a file of COPY BINARY. For servers that
# allow no replication connection. The slot moves on when the file is landed, and uploaded if there is an UPLOAD, so
# that a run which dies anywhere has lost nothing: the next one lands the same changes again.
set -euo pipefail
source=${1:?which source?} state=${2:?the folder of its state?}
# shellcheck source-path=SCRIPTDIR source=landed.sh
. "$(dirname "${BASH_SOURCE[0]}")/landed.sh"
here=$(dirname "${BASH_SOURCE[0]}")

query() {
  psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 \
    --set=slot="$SLOT" --set=publication="$PUBLICATION" --set=upto="${upto:-}" --file="$here/$1.sql"
}

# What an earlier run could not bring to its place is in the way of more.
land
upload
upto=$(query copy-end)
query copy-changes >"$state/part"
# A file without a row is a head of 19 bytes and an end of 2.
if (($(stat -c %s "$state/part") > 21)); then
  sync "$state/part"
  mv "$state/part" "$complete/$source-$(next_number).pgcopy"
  sync "$complete"
fi
rm -f "$state/part"
land
upload
query copy-advance
