#!/usr/bin/env bash
# The tests that need Spark, and beside them, as these leave a core half idle, all others, which take what is left: two
# processes, one session.
# What is given goes to both, as for pytest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${1:?which Python?}
shift

others=$(mktemp)
set -m # else it would not hear of an interrupt
nice -n 19 "$python" -m pytest -q -m "not spark and not soak" "$@" >"$others" 2>&1 &
pid=$!
set +m
finish() {
  kill -INT "$pid" 2>/dev/null
  wait "$pid"
  printf '\nThe tests without Spark:\n'
  cat "$others"
  rm -f "$others"
}
trap finish EXIT
trap 'exit 130' INT TERM

# A line with its seconds for each; one that hangs says where, and ends them all.
hangs=(-o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true)
"$python" -m pytest -v --no-header -o console_output_style=times "${hangs[@]}" -m "spark and not soak" "$@"
spark=$?
wait "$pid"
rest=$?
# 5: what was asked for chose none of them
((spark == 0 || spark == 5)) && ((rest == 0 || rest == 5)) && ((spark == 0 || rest == 0))
