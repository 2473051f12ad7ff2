#!/usr/bin/env bash
# copy.sh SOURCE STATE: lands the slot's changes as a COPY BINARY file, with psql alone, for servers that allow no
# replication connection. The slot advances only after the file has landed, and was uploaded if UPLOAD is set. A run
# that dies loses nothing: the next one lands the same changes again.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source-path=SCRIPTDIR source=landed.sh
. "$here/landed.sh"

query() {
  psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 \
    --set=slot="$SLOT" --set=publication="$PUBLICATION" --set=upto="${upto:-}" --file="$here/$1.sql"
}

# Files of an earlier run come first.
land
upload
upto=$(query copy-end)
query copy-changes >"$state/part"
# A file without rows has a header of 19 bytes and a trailer of 2.
if [[ -n $(find "$state/part" -size +21c) ]]; then
  sync "$state/part"
  choose_number
  move "$state/part" "$complete/$source-$next.pgcopy"
  sync "$complete"
fi
rm -f "$state/part"
land
upload
query copy-advance
exit "$status"
