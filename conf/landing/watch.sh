#!/usr/bin/env bash
# watch.sh SOURCE STATE: prints a line about the slot to standard output and a line per problem to standard error. Exits
# with 1 if there are problems.
set -uo pipefail
source=${1:?expected a source} state=${2:?expected the folder of its state}
here=$(dirname "${BASH_SOURCE[0]}")
landing=${LANDING:-$state/landed}
status=0
wrong() {
  echo "$source: $*" >&2
  status=1
}

if ! row=$(psql --no-psqlrc --quiet --tuples-only --no-align --field-separator='|' --set=ON_ERROR_STOP=1 \
  --set=slot="$SLOT" --file="$here/watch.sql"); then
  wrong "can't query the server about its slot"
elif [[ -z $row ]]; then
  wrong "the server has no slot $SLOT: changes committed now will never be landed"
else
  IFS='|' read -r active wal_status retained behind safe catalog_age reason inactive_since <<<"$row"
  echo "$source: slot $SLOT active=$active wal_status=$wal_status retained_bytes=$retained behind_bytes=$behind" \
    "safe_wal_size=$safe catalog_age=$catalog_age"
  [[ $wal_status != lost ]] || wrong "the slot $SLOT is lost ($reason): its WAL was removed, with changes not yet landed"
  [[ $wal_status != unreserved ]] || wrong "the next checkpoint removes WAL that the slot $SLOT needs"
  [[ $active == t || ${LANDED_BY:-} == copy ]] || wrong "no receiver on the slot $SLOT since ${inactive_since:-?}"
  ((retained <= ${MAX_RETAINED_BYTES:-17179869184})) || wrong "the slot $SLOT retains $retained bytes of WAL on the server"
  ((catalog_age <= ${MAX_CATALOG_AGE:-50000000})) || wrong "the slot $SLOT holds VACUUM back by $catalog_age transactions"
fi

for file in "$landing/$source"-[0-9]* "$state/complete/$source"-[0-9]* "$state/renamed"; do
  [[ -e $file ]] || continue
  [[ -n ${UPLOAD:-} || $file != "$landing"/* ]] || continue
  waits=$(($(date +%s) - $(stat -c %Y "$file")))
  ((waits <= ${MAX_WAITING_SECONDS:-3600})) || { wrong "$file has waited for $waits seconds"; break; }
done
for folder in "$state" "$landing"; do
  [[ -d $folder ]] || continue
  full=$(df --output=pcent "$folder" | tail -n 1 | tr -d ' %')
  ((full <= ${MAX_DISK_PERCENT:-80})) || wrong "the disk below $folder is $full % full"
done
exit "$status"
