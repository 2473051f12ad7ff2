#!/usr/bin/env bash
# Runs one of the jobs with spark-submit, together with Delta Lake and this package.
#
#   ./spark-submit.sh [Spark's options] JOB [the job's arguments]
#   ./spark-submit.sh jobs/apply.py --config conf/local.yaml --master 'local[4]' --driver-memory 4g
#
# Spark's options that take a value may follow JOB too; arguments after `--` belong to the job. Uses the Spark in
# SPARK_HOME, else in ./.venv, else of python3. Exits with the job's exit code.
set -euo pipefail

# Streams that are closed: without this, other files would get their numbers.
[[ -e /dev/fd/0 ]] || exec </dev/null
[[ -e /dev/fd/1 ]] || exec >/dev/null
[[ -e /dev/fd/2 ]] || exec 2>/dev/null

# Spark's options that take a value.
value_options=" --archives --class --conf -c --deploy-mode --driver-class-path --driver-cores --driver-java-options \
 --driver-library-path --driver-memory --exclude-packages --executor-cores --executor-memory --files --jars --keytab \
 --kill --master --name --num-executors --packages --principal --properties-file --proxy-user --py-files --queue \
 --remote --repositories --status --total-executor-cores "

# The newest Delta Lake for each Spark, and its dependencies that every Spark already has. They are excluded, as Spark
# would send 70 MB of them to the executors.
delta_version=4.4.0
delta_sparks=" 4.0 4.1 4.2 "
in_spark_already="com.fasterxml.jackson.core:*,com.github.luben:zstd-jni,com.google.code.findbugs:jsr305,\
commons-logging:commons-logging,commons-pool:commons-pool,io.airlift:aircompressor,\
javax.annotation:javax.annotation-api,org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime,\
org.apache.logging.log4j:*,org.apache.parquet:*,org.locationtech.jts:*,org.roaringbitmap:*,org.slf4j:*,\
org.xerial.snappy:*"

script=${BASH_SOURCE[0]}
while [[ -L $script ]]; do
  link=$(readlink "$script")
  [[ $link == /* ]] || link=$(dirname "$script")/$link
  script=$link
done
here=$(cd "$(dirname "$script")" && pwd)

fail() {
  printf 'spark-submit.sh: %s\n' "$1" >&2
  exit "${2:-2}"
}
[[ $here != *[:\"]* ]] || fail "Python and Java can't read a path with ':' or '\"': move the folder $here"

usage() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

# Sort the arguments: Spark's options into `spark`, the job and its arguments into `job`.

spark=() job=()
packages="" excludes="" py_files="" jars="" master="" deploy_mode="" properties=""
driver_python="" worker_python=""

keep() { # OPTION VALUE, one of Spark's options: collects the lists that this script adds to, passes on all others
  local key=$1 value=$2
  [[ $key != --conf && $key != -c ]] || key=${2%%=*} value=${2#*=}
  case $key in
    --packages | spark.jars.packages) packages+=,$value && return ;;
    --exclude-packages | spark.jars.excludes) excludes+=,$value && return ;;
    --py-files | spark.submit.pyFiles) py_files+=,$value && return ;;
    --jars | spark.jars) jars=$value ;;
    --master | spark.master) master=$value ;;
    --deploy-mode | spark.submit.deployMode) deploy_mode=$value ;;
    --properties-file) properties=$value ;;
    spark.pyspark.driver.python) driver_python=$value && return ;;
    spark.pyspark.python) worker_python=$value ;;
  esac
  spark+=("$1" "$2")
}

while (($#)); do
  if [[ $value_options == *" $1 "* ]]; then
    (($# > 1)) || fail "$1 needs a value"
    keep "$1" "$2"
    shift
  elif [[ $1 == --*=* && $value_options == *" ${1%%=*} "* ]]; then
    keep "${1%%=*}" "${1#*=}"
  elif ((${#job[@]})); then
    if [[ $1 == -- ]]; then
      shift
      job+=("$@")
      break
    fi
    job+=("$1")
  elif [[ $1 == -h || $1 == --help ]]; then
    usage
    exit 0
  elif [[ $1 == -* ]]; then
    spark+=("$1") # such as --verbose
  else
    job+=("$1")
  fi
  shift
done
((${#job[@]})) || fail "expected a job; $(usage | sed -n 3p | sed 's/^ */usage: /')"
[[ -f ${job[0]} || ${job[0]} == *://* ]] || fail "no such job: ${job[0]}"

# Find Spark and Python.

own_python=python3
[[ ! -x $here/.venv/bin/python ]] || own_python=$here/.venv/bin/python
if [[ -z ${SPARK_HOME-} ]]; then
  SPARK_HOME=$("$own_python" -c 'from importlib.util import find_spec as f; print(f("pyspark").submodule_search_locations[0])' \
    2>/dev/null) || fail "no Spark: set SPARK_HOME, or run make demo once, or install pyspark for $own_python"
fi
# The driver's Python, in Spark's order of precedence.
python=${driver_python:-${worker_python:-${PYSPARK_DRIVER_PYTHON:-${PYSPARK_PYTHON:-$own_python}}}}
export SPARK_HOME

configured() { # KEY: its value in Spark's configuration file
  local file=${properties:-${SPARK_CONF_DIR:-$SPARK_HOME/conf}/spark-defaults.conf}
  [[ ! -f $file ]] || sed -n "s/^[[:space:]]*$1[[:space:]=:]\{1,\}//p" "$file" | tail -n 1
}
deploy_mode=${deploy_mode:-$(configured spark.submit.deployMode)}

# Python puts a script's folder first in its path, where jobs/inspect.py would shadow the standard library's inspect.
run_job='import runpy, sys; from os.path import dirname; del sys.argv[0]
sys.path = [p for p in sys.path if p] + [dirname(sys.argv[0])]
runpy.run_path(sys.argv[0], run_name="__main__")'

little_work=false
# Before a JVM starts, a job of this package checks its command line and configuration, and runs if it needs no Spark.
# In cluster mode, the configuration may be only where the driver runs.
if [[ ${job[0]} == *.py && ${job[0]%/*} -ef $here/jobs && $deploy_mode != cluster ]]; then
  run=(env "PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}" "$python" -c "$run_job" "${job[@]}") status=0
  PGOUTPUT_ETL_BEFORE_SPARK=1 "${run[@]}" || status=$?
  case $status in # see pgoutput_etl/exit_codes.py
    75) ;;
    77) little_work=true ;;
    76) exec "${run[@]}" ;;
    *) exit "$status" ;;
  esac
fi

"$here/tools/require.sh" java || exit 1

core=$(cd "$SPARK_HOME/jars" 2>/dev/null && echo spark-core_*.jar) || true # spark-core_2.13-4.2.0.jar
[[ $core == spark-core_*-*.jar ]] || fail "no Spark in $SPARK_HOME"
core=${core#spark-core_} core=${core%.jar}
scala_version=${core%%-*} spark_version=${core#*-}
[[ $spark_version == 4.* ]] || fail "Spark $spark_version in $SPARK_HOME is too old: 4.0, 4.1, or 4.2 is required"

packages=${packages:-,$(configured spark.jars.packages)}
excludes=${excludes:-,$(configured spark.jars.excludes)}
py_files=${py_files:-,$(configured spark.submit.pyFiles)}
jars=${jars:-$(configured spark.jars)}
master=${master:-$(configured spark.master)}

joined() { # LIST: without superfluous commas
  local list
  list=$(tr -s ',' <<<"$1")
  list=${list#,}
  printf '%s' "${list%,}"
}

if [[ "$packages $jars $(ls "$SPARK_HOME/jars")" != *delta-spark* ]]; then
  [[ $delta_sparks == *" ${spark_version%.*} "* ]] ||
    fail "no known Delta Lake for Spark $spark_version: name one with --packages io.delta:delta-spark_…"
  packages+=,io.delta:delta-spark_${spark_version%.*}_$scala_version:$delta_version
  excludes+=,$in_spark_already
fi
packages=$(joined "$packages") excludes=$(joined "$excludes")

# Spark's Python workers: on this machine the driver's Python; elsewhere Spark's configuration decides.
[[ ${master:-local} != local* ]] || export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$python}

# Collect the files to send, and redirect output.

temporary=${TMPDIR:-/tmp}
no_room="can't write to $temporary: point TMPDIR at a folder with some room that this user may write"
work=$(mktemp -d "$temporary/pgoutput-etl.XXXXXX" 2>/dev/null) || fail "$no_room" 1
trap 'rm -rf "$work"' EXIT

(cd "$here" && "$own_python" -m zipfile -c "$work/pgoutput_etl.zip" pgoutput_etl/ 2>/dev/null) || fail "$no_room" 1
py_files=$(joined "$work/pgoutput_etl.zip,$py_files")

# Java's names of files, and its digits in them; see pgoutput_etl/spark/jvm.py.
[[ ${LC_ALL:-${LC_CTYPE:-${LANG-}}} =~ [Uu][Tt][Ff]-?8 ]] || export LC_ALL=C.UTF-8
export SPARK_SUBMIT_OPTS="-Duser.language=en -Duser.country=US ${SPARK_SUBMIT_OPTS-}"

log=$here/pgoutput_etl/spark/log4j2.properties spark_conf=${SPARK_CONF_DIR:-$SPARK_HOME/conf}
if [[ -z $(ls "$spark_conf"/log4j2.{properties,yaml,yml,json,jsn,xml} 2>/dev/null) ]]; then
  # The first of the JVM's options, so that the command line and spark-defaults.conf take precedence.
  export SPARK_SUBMIT_OPTS="-Dlog4j2.configurationFile=\"$log\" ${SPARK_SUBMIT_OPTS-}"
  [[ " ${job[*]} " != *" --debug "* ]] || export SPARK_SUBMIT_OPTS="-Dpgoutput_etl.log=full $SPARK_SUBMIT_OPTS"
fi

java_options="${SPARK_SUBMIT_OPTS-} ${JAVA_TOOL_OPTIONS-} ${JDK_JAVA_OPTIONS-} ${spark[*]-} \
$(configured spark.driver.extraJavaOptions) $(configured spark.driver.defaultJavaOptions)"
if $little_work && [[ $java_options != *GC* ]]; then # see pgoutput_etl/spark/jvm.py
  light="-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
  export SPARK_SUBMIT_OPTS="$light ${SPARK_SUBMIT_OPTS-}"
fi

# Ivy keeps the packages that it downloads, and locks, below the home folder that Java finds.
if [[ -n $packages && $java_options != *-Duser.home=* && $java_options != *spark.jars.ivy* ]]; then
  home=$("$python" -IS -c 'import os, pwd; print(pwd.getpwuid(os.getuid()).pw_dir)' 2>/dev/null) || home=${HOME-}
  ivy=${home:-.}/.ivy2.5.2
  if [[ -z $(configured spark.jars.ivy) ]] && { ! mkdir -p "$ivy" 2>/dev/null || [[ ! -w $ivy ]]; }; then
    fail "Java can't keep packages in this user's home, $ivy: name a folder with --conf spark.jars.ivy=FOLDER" 1
  fi
fi

# Java looks its own machine up, which fails where the name has no address.
if [[ ${master:-local} == local* && -z ${SPARK_LOCAL_IP-} ]] &&
  ! "$own_python" -IS -c 'import socket; socket.gethostbyname(socket.gethostname())' 2>/dev/null; then
  export SPARK_LOCAL_IP=127.0.0.1 SPARK_LOCAL_HOSTNAME=localhost
fi

command=("$SPARK_HOME/bin/spark-submit" --conf spark.ui.showConsoleProgress=false --py-files "$py_files")
[[ -z $packages ]] || command+=(--packages "$packages")
[[ -z $excludes ]] || command+=(--exclude-packages "$excludes")

# Spark runs a Python driver beneath the JVM, mixes its standard error into its standard output through a pipe, and
# may end before it has copied everything. The summary must be complete and alone on standard output, as programs read
# it, and progress belongs on the terminal. So the driver's Python writes to this script's descriptors, and output of the
# JVM (such as Delta's VACUUM, on standard output) goes to standard error.
mkfifo "$work/out" "$work/err" "$work/spark"
cat <"$work/out" &
output=$!
cat <"$work/err" >&2 &
"$own_python" -IS "$here/pgoutput_etl/spark/jvm_output.py" <"$work/spark" >&2 &
exec 7>"$work/out" 8>"$work/err" 9>"$work/spark" # open until the end, even if Spark never opens them
out=$work/out err=$work/err
[[ ! -t 1 ]] || { out=$(tty <&6); } 6>&1
[[ ! -t 2 ]] || err=$(tty <&2)

printf '#!/usr/bin/env bash\necho $$ >%q\nexec %q -c %q "$@" >%q 2>%q\n' \
  "$work/pid" "$python" "$run_job" "$out" "$err" >"$work/python"
chmod +x "$work/python"
[[ $deploy_mode == cluster ]] || set -- --conf "spark.pyspark.driver.python=$work/python"

"${command[@]}" "$@" ${spark[@]+"${spark[@]}"} "${job[@]}" >&9 2>&9 7>&- 8>&- 9>&- &
submit=$!
stop() { # SIGNAL: stops the driver first, so that it can't complain about a lost JVM
  local driver=""
  [[ ! -f $work/pid ]] || driver=$(<"$work/pid")
  kill "-$1" ${driver:+"$driver"} "$submit" 2>/dev/null || true
}
trap 'stop TERM' HUP INT TERM
if [[ " ${job[*]} " == *" --follow"[\ =]* ]]; then # the driver needs its JVM until it has finished its batch
  trap '[[ ! -f $work/pid ]] && stop TERM || kill -TERM "$(<"$work/pid")" 2>/dev/null || true' TERM
fi

# If this script is killed, kill Spark too, so that no unseen run is left to meet the next one.
mkfifo "$work/alive"
{
  trap '' HUP TERM
  read -r <"$work/alive" || stop KILL
  rm -rf "$work"
} 7>&- 8>&- 9>&- &
exec 5>"$work/alive"

status=0
wait "$submit" || status=$?
while kill -0 "$submit" 2>/dev/null; do # a signal ends `wait` before Spark ends
  status=0
  wait "$submit" || status=$?
done
echo over >&5
exec 5>&- 7>&- 8>&- 9>&-
copied=0
wait "$output" || copied=$?
((copied != 1 || status)) || status=1 # the report is lost, as on a full disk; a reader that ends early has other codes
wait
# Codes of Spark's Java process, such as 52 without memory: the job has said what failed.
((status < 50 || status > 56)) || status=1
exit "$status"
