#!/usr/bin/env bash
# The tests that need Spark, and beside them, as these leave a core half idle, all others: two processes, one session.
# What is given goes to both, as for pytest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${1:?which Python?}
shift

others=$(mktemp)
"$python" -m pytest -q -m "not spark and not soak" "$@" >"$others" 2>&1 &
pid=$!
trap 'kill -INT "$pid" 2>/dev/null; wait "$pid"; rm -f "$others"' EXIT
trap 'exit 130' INT TERM

"$python" -m pytest -q -m "spark and not soak" --durations=12 "$@"
spark=$?
wait "$pid"
rest=$?
printf '\nThe tests without Spark:\n'
cat "$others"
# 5: what was asked for chose none of them
((spark == 0 || spark == 5)) && ((rest == 0 || rest == 5)) && ((spark == 0 || rest == 0))
