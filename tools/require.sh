#!/usr/bin/env bash
# tools/require.sh [java] [python]: prints a line for each that is missing or too old, and how to install it.
# shellcheck disable=SC2329 # the functions are called by name, at the end
set -uo pipefail

status=0
missing() {
  printf '%s\n' "$1" >&2
  status=1
}

require_java() {
  # If JAVA_HOME is set, Spark uses that Java and no other.
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version from=${JAVA_HOME:+ (JAVA_HOME is $JAVA_HOME)}
  local how="install a JDK or JRE 17 or 21, such as Debian's openjdk-17-jre-headless, or point JAVA_HOME at one"
  # The /usr/bin/java of macOS is only a stub that prints no version. Java repeats its options, which may be secret.
  local says
  says=$("$java" -version 2>&1 | sed -e '/Picked up /d' -e "s/=.*'\$/=…'/" -e "s/=[^…].*\$/=…/")
  version=$(sed -n 's/.*version "\([0-9][0-9.]*\).*/\1/p' <<<"$says" | head -n 1)
  if [[ -z $version && $says =~ Could\ not\ create|initialization\ of|insufficient\ memory|JAVA_OPTIONS ]]; then
    missing "Java does not start: ${says//$'\n'/ } (check JDK_JAVA_OPTIONS and ulimit -v, which is $(ulimit -v))"
  elif [[ -z $version ]]; then
    missing "Java 17 or newer is required, and none was found$from: $how."
  elif ((${version%%.*} < 17)); then
    missing "Java 17 or newer is required, and this is $version$from: $how."
  fi
}

require_python() {
  local python=${PYTHON:-python3} version
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
  if [[ -z $version ]]; then
    missing "Python 3.10 or newer is required, and $python was not found: install it, or name one: make PYTHON=python3.12 …"
  elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    missing "Python 3.10 or newer is required, and $python is $version: install one, and name it: make PYTHON=python3.12 …"
  elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian and Ubuntu ship Python without ensurepip and venv.
    missing "$python can't create virtual environments: install its venv package, such as Debian's python3-venv (python$version-venv)."
  fi
}

for program in "$@"; do
  "require_$program"
done
exit "$status"
