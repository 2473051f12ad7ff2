#!/usr/bin/env bash
# tools/require.sh [java] [python]: says in one line each what is missing or too old, and how to get it.
# shellcheck disable=SC2329 # the functions are called by what they require
set -uo pipefail

status=0
missing() {
  printf '%s\n' "$1" >&2
  status=1
}

require_java() {
  # Spark takes JAVA_HOME where it is set, and nothing else then.
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version from=${JAVA_HOME:+ (JAVA_HOME is $JAVA_HOME)}
  local how="install a JDK or JRE 17 or 21, such as Debian's openjdk-17-jre-headless, or point JAVA_HOME at one"
  # macOS has a /usr/bin/java that only says that there is none: it prints no version.
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9.]*\).*/\1/p' | head -n 1)
  if [[ -z $version ]]; then
    missing "Java 17 or newer is needed and none was found$from: $how."
  elif ((${version%%.*} < 17)); then
    missing "Java 17 or newer is needed and this is $version$from: $how."
  fi
}

require_python() {
  local python=${PYTHON:-python3} version
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
  if [[ -z $version ]]; then
    missing "Python 3.10 or newer is needed and $python was not found: install it, or name one: make PYTHON=python3.12 …"
  elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    missing "Python 3.10 or newer is needed and $python is $version: install one, and name it: make PYTHON=python3.12 …"
  elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian and Ubuntu ship Python without what makes virtual environments.
    missing "$python can't make virtual environments: install its venv package, such as Debian's python3-venv (python$version-venv)."
  fi
}

for what in "$@"; do
  "require_$what"
done
exit "$status"
