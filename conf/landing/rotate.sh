#!/usr/bin/env bash
# rotate.sh SOURCE STATE: lands pg_recvlogical's STATE/current if it is large or old enough. ROTATE_SECONDS=0 lands it in
# any case. Exits with 1 if nobody can tell whether a receiver still writes to the file; the file stays.
#
# pg_recvlogical writes to its open file, whatever its name, until SIGHUP; then it syncs and closes the file and opens a
# new `current`. A renamed file is therefore complete once no receiver has it open: also if the receiver was killed, waits
# for its server, or this script died in between. /proc shows the receivers of this user and PID namespace, and the lock
# of receive.sh shows all others.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=landed.sh
. "$(dirname "${BASH_SOURCE[0]}")/landed.sh"

current=$state/current renamed=$state/renamed lock=$state/receiver.lock
read_setting ROTATE_BYTES 268435456
read_setting ROTATE_SECONDS 900
read_setting ROTATE_PATIENCE 10

is_due() {
  local size
  [[ -s $current ]] || return 1
  size=$(stat --format=%s "$current")
  is_number "$size" && ((size >= ROTATE_BYTES)) && return
  [[ ! -e $state/rotated ]] || is_old "$state/rotated" "$ROTATE_SECONDS"
}

# Sets `pid` to the visible receiver that has the file open.
find_receiver() {
  local process name fd
  for process in /proc/[0-9]*; do
    read -r name 2>/dev/null <"$process/comm" || continue
    [[ $name == pg_recvlogical || $name == receive.sh ]] || continue
    for fd in "$process"/fd/*; do
      if [[ $fd -ef $1 ]]; then
        pid=${process##*/}
        return
      fi
    done
  done
  return 1
}

# True if the renamed file is complete.
is_closed() {
  local pid tries
  if find_receiver "$renamed"; then
    kill -HUP "$pid" || true
    for ((tries = 0; tries < 10 * ROTATE_PATIENCE; tries++)); do
      find_receiver "$renamed" || return 0
      sleep 0.1
    done
    echo "the receiver has not opened a new file: it waits for its server. A later run lands the changes" >&2
    return 1
  fi
  [[ ! -e $current ]] || return 0
  if [[ ! -e $lock ]]; then
    echo "can't tell whether a receiver writes to $renamed, as receive.sh did not start it. Start receive.sh" >&2
    status=1
    return 1
  fi
  # Either no receiver runs, or a visible one, which doesn't have the file.
  if flock --nonblock "$lock" true || find_receiver "$lock"; then return 0; fi
  echo "a receiver that can't be seen from here may write to $renamed: it runs in another container, or as another" \
    "user. Run rotate.sh there" >&2
  status=1
  return 1
}

# A file that an earlier run renamed but did not see closed comes first.
if [[ ! -e $renamed ]] && is_due; then
  move "$current" "$renamed"
  touch "$state/rotated"
fi
if [[ -e $renamed ]] && is_closed; then
  sync "$renamed" "$state"
  choose_number
  move "$renamed" "$complete/$source-$next.bin"
  sync "$complete" "$state"
fi
land
upload
exit "$status"
