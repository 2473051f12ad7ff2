#!/usr/bin/env bash
# Runs the tests that need Spark and, beside them on the time that these leave idle, all others that need no server.
#
#   tools/test.sh PYTHON [PYTEST ARGUMENTS]     # both runs get the arguments
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${1:?which Python?}
shift

others=$(mktemp)
set -m # without it the background run would not receive an interrupt
nice -n 19 "$python" -m pytest -q -n 2 --dist loadfile --ignore=tests/servers -m "not spark and not soak" "$@" \
  >"$others" 2>&1 &
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

# One line and its seconds per test. A test that hangs prints its stacks and ends the run.
hangs=(-o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true)
"$python" -m pytest -v --no-header -o console_output_style=times "${hangs[@]}" -m "spark and not soak" "$@"
spark=$?
wait "$pid"
rest=$?
# 5: the arguments selected no test
((spark == 0 || spark == 5)) && ((rest == 0 || rest == 5)) && ((spark == 0 || rest == 0))
