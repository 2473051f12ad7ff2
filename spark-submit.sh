#!/usr/bin/env bash
# Runs one of the jobs with Spark, Delta Lake, and this package: see ./spark-submit.sh --help.
set -euo pipefail

# Streams that are closed: without this, other files would get their numbers.
[[ -e /dev/fd/0 ]] || exec </dev/null
[[ -e /dev/fd/1 ]] || exec >/dev/null
[[ -e /dev/fd/2 ]] || exec 2>/dev/null

script=${BASH_SOURCE[0]}
while [[ -L $script ]]; do
  link=$(readlink "$script")
  [[ $link == /* ]] || link=$(dirname "$script")/$link
  script=$link
done
here=$(cd "$(dirname "$script")" && pwd)

python=$here/.venv/bin/python
[[ -x $python ]] || python=python3
exec "$python" -IS "$here/pgoutput_etl/submit.py" "$@"
