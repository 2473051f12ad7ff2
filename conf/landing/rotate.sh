#!/usr/bin/env bash
# rotate.sh SOURCE STATE: lands pg_recvlogical's STATE/current if it is large or old enough. ROTATE_SECONDS=0 lands it in
# any case.
#
# pg_recvlogical writes to its open file, whatever its name, until SIGHUP; then it syncs and closes the file and opens a
# new `current`. A renamed file is therefore complete once a `current` exists again, or no receiver runs: also if the
# receiver was killed, waits for its server, or this script died in between.
set -euo pipefail
source=${1:?which source?} state=${2:?the folder of its state?}
# shellcheck source-path=SCRIPTDIR source=landed.sh
. "$(dirname "${BASH_SOURCE[0]}")/landed.sh"

current=$state/current renamed=$state/renamed

is_due() {
  [[ -s $current ]] || return 1
  (($(stat -c %s "$current") >= ${ROTATE_BYTES:-268435456})) && return
  [[ ! -e $state/rotated ]] || (($(date +%s) - $(stat -c %Y "$state/rotated") >= ${ROTATE_SECONDS:-900}))
}

# True if the receiver has closed the renamed file.
is_closed() {
  local pid tries
  [[ ! -e $current ]] || return 0
  pid=$(systemctl show --property=MainPID --value "pg-landing@$source.service")
  [[ $pid != 0 ]] || return 0
  kill -HUP "$pid" || return 1
  for ((tries = 0; tries < 10 * ${ROTATE_PATIENCE:-10}; tries++)); do
    [[ ! -e $current ]] || return 0
    sleep 0.1
  done
  return 1
}

# A file that an earlier run renamed but did not see closed comes first.
if [[ ! -e $renamed ]] && is_due; then
  mv "$current" "$renamed"
  touch "$state/rotated"
fi
if [[ -e $renamed ]]; then
  if is_closed; then
    sync "$renamed" "$state"
    mv "$renamed" "$complete/$source-$(next_number).bin"
    sync "$complete" "$state"
  else
    echo "the receiver opens no new file: it waits for its server. What it has written is landed afterwards" >&2
  fi
fi
land
upload
