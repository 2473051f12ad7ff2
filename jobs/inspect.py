"""Looks into landed files: what is in them, without Delta, a ledger or a configuration.

One slot's archive, or a part of it, at a time: files, folders or globs. Files of this machine are read by Python alone,
on all of its cores: Spark would take longer to start than most archives take to look into, and have the same cores.
What lies elsewhere (s3a://, abfss://, hdfs://, …) is read by Spark, on its cluster; --spark asks for that for files
that all of a cluster sees under one path.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
# A script's folder comes first in Python's path: there this file would pass for the standard library's inspect, for
# itself and for every other job that is run without spark-submit.sh.
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _HERE]  # noqa: PTH100

if __name__ == "inspect":
    del sys.modules["inspect"]
    import inspect  # noqa: F401 # the standard library's, which whoever asked for it is given

if __name__ == "__main__":
    sys.path.append(os.path.dirname(_HERE))  # noqa: PTH120 # of a clone that nothing was installed from
    from pgoutput_etl.inspect_command import main

    sys.exit(main(__doc__ or ""))
