#!/usr/bin/env bash
# watch.sh SOURCE STATE: prints a line about the slot to standard output and a line per problem to standard error. Exits
# with 1 if there are problems. Writes the figures to METRICS, for Prometheus.
set -uo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source-path=SCRIPTDIR source=state.sh
. "$here/state.sh"
read_setting MAX_RETAINED_BYTES 17179869184
read_setting MAX_CATALOG_AGE 50000000
read_setting MAX_WAITING_SECONDS 3600
read_setting MAX_DISK_PERCENT 80
[[ -z ${METRICS:-} || $METRICS == /*.prom ]] ||
  fail "METRICS=$METRICS: expected an absolute path that ends with .prom, as node exporter reads no other files"

# gauge NAME VALUE HELP: prints it in Prometheus' text format. The source's name is its only text from outside.
gauge() {
  local label=${source//\\/\\\\}
  label=${label//\"/\\\"}
  printf '%s\n' "# HELP pg_landing_$1 $3" "# TYPE pg_landing_$1 gauge" "pg_landing_$1{source=\"$label\"} $2"
}

print_metrics() {
  local size bytes=0 landed is_active=1
  if [[ -n $retained ]]; then
    [[ $active == t ]] || is_active=0
    gauge slot_retained_bytes "$((10#$retained))" "WAL that the server keeps for the slot."
    [[ ${LANDED_BY:-} == copy ]] || gauge slot_active "$is_active" "1 if a receiver is connected."
  fi
  if landed=$(stat --format=%Y -- "$state/last" 2>/dev/null) && is_number "$landed"; then
    gauge last_landed_timestamp_seconds "$((10#$landed))" "When the last file landed."
  fi
  ((${#waiting[@]} == 0)) || while read -r size; do
    ! is_number "$size" || bytes=$((bytes + 10#$size))
  done < <(stat --format=%s -- "${waiting[@]}" 2>/dev/null)
  gauge waiting_files "${#waiting[@]}" "Files that wait to be landed or uploaded."
  gauge waiting_bytes "$bytes" "Bytes that wait to be landed or uploaded."
  gauge watch_exit_code "$status" "0 if the last watch found no problem."
  gauge watch_timestamp_seconds "$(date +%s)" "When the last watch ended."
}

# Others may write to the folder of METRICS: as in landed.sh, this writes only to a file that it creates, and a rename
# replaces a link instead of following it. Everybody may read the file, which has numbers only.
write_metrics() (
  part=${METRICS%/*}/.${METRICS##*/}
  for file in "$part".*; do
    # Of a watch that was killed.
    ! is_old "$file" 60 || rm -f -- "$file" || true
  done
  part=$(mktemp --dry-run "$part.XXXXXXXXXX")
  umask 022
  set -o noclobber
  print_metrics >"$part" && mv --no-target-directory "$part" "$METRICS"
)

# The columns of watch.sql.
digits='[0-9]{1,18}'
is_row="^([tf])\|([a-z]*)\|($digits)\|(-?$digits)\|(-?$digits)?\|($digits)\|([a-z_]*)\|([-+:.T 0-9]*)\$"

retained=
if ! row=$(psql --no-psqlrc --quiet --tuples-only --no-align --field-separator='|' --set=ON_ERROR_STOP=1 \
  --set=slot="$SLOT" --file="$here/watch.sql"); then
  report "can't query the server about its slot"
elif [[ -z $row ]]; then
  report "the server has no slot $SLOT: changes committed now will never be landed"
elif [[ ! $row =~ $is_row ]]; then
  report "the server's answer about its slot $SLOT is not what watch.sql asks for"
else
  IFS='|' read -r active wal_status retained behind safe catalog_age reason inactive_since <<<"$row"
  echo "$source: slot $SLOT active=$active wal_status=$wal_status retained_bytes=$retained behind_bytes=$behind" \
    "safe_wal_size=$safe catalog_age=$catalog_age"
  [[ $wal_status != lost ]] || report "the slot $SLOT is lost ($reason): its WAL was removed, with changes not yet landed"
  [[ $wal_status != unreserved ]] || report "the next checkpoint removes WAL that the slot $SLOT needs"
  [[ $active == t || ${LANDED_BY:-} == copy ]] || report "no receiver on the slot $SLOT since ${inactive_since:-?}"
  ((10#$retained <= MAX_RETAINED_BYTES)) || report "the slot $SLOT retains $retained bytes of WAL on the server"
  ((10#$catalog_age <= MAX_CATALOG_AGE)) || report "the slot $SLOT holds VACUUM back by $catalog_age transactions"
fi

# All that waits in `complete`, whatever its name, and what is uploaded later.
select_files "$LANDING/$source"-[0-9]*
[[ -n ${UPLOAD:-} ]] || files=()
waiting=("${files[@]}" "$complete"/*)
[[ ! -e $state/renamed ]] || waiting+=("$state/renamed")
for file in "${waiting[@]}" "$state/current"; do
  [[ $file != "$state/current" || -s $file ]] || continue
  if [[ -e $file || -L $file ]] && is_old "$file" "$MAX_WAITING_SECONDS"; then
    report "${file@Q} has waited for more than $MAX_WAITING_SECONDS seconds"
    break
  fi
done
for folder in "$state" "$LANDING"; do
  [[ -d $folder ]] || continue
  full=$(df --output=pcent "$folder" | tail -n 1 | tr -d ' %')
  is_number "$full" || { report "can't tell how full the disk below $folder is"; continue; }
  ((10#$full <= MAX_DISK_PERCENT)) || report "the disk below $folder is $full % full"
done
[[ -z ${METRICS:-} ]] || write_metrics || report "METRICS=$METRICS: the file can't be written"
exit "$status"
