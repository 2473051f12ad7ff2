#!/usr/bin/env bash
# run.sh SOURCE STATE: receives, rotates, uploads, and watches, as a unit of systemd, in a container, or in a shell.
# SIGTERM, SIGINT, or SIGHUP ends the receiver, and lands and uploads what it received.
set -uo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source-path=SCRIPTDIR source=state.sh
. "$here/state.sh"
read_setting RESTART_SECONDS 5
read_setting CHECK_SECONDS 60
read_setting WATCH_SECONDS 300
ending=
declare -A pid=() due=([watch.sh]=10)
trap 'ending=1' TERM INT HUP

# Starts a script in the background unless it runs, or ended less than so many seconds ago.
keep() {
  local script=$1 seconds=$2
  if [[ -n ${pid[$script]:-} ]]; then
    kill -0 "${pid[$script]}" 2>/dev/null && return
    unset "pid[$script]"
    due[$script]=$((SECONDS + seconds))
  fi
  ((SECONDS >= ${due[$script]:-0})) || return 0
  "$here/$script" "$source" "$state" &
  pid[$script]=$!
}

while [[ -z $ending ]]; do
  keep receive.sh "$RESTART_SECONDS"
  keep rotate.sh "$CHECK_SECONDS"
  keep watch.sh "$WATCH_SECONDS"
  sleep 1 &
  wait $!
done

echo "$source: ending"
if [[ -n ${pid[receive.sh]:-} ]]; then
  # Bash starts background processes with SIGINT ignored, so an early one has no effect. A receiver that is connecting
  # to an unreachable server doesn't end.
  for ((tries = 0; tries < 50; tries++)); do
    kill -INT "${pid[receive.sh]}" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "${pid[receive.sh]}" 2>/dev/null
  wait "${pid[receive.sh]}" 2>/dev/null
fi
[[ -z ${pid[rotate.sh]:-} ]] || wait "${pid[rotate.sh]}"
ROTATE_SECONDS=0 "$here/rotate.sh" "$source" "$state"
