"""Looks into landed files: what is in them, without Delta, a ledger or a configuration."""

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
    from pgoutput_etl.jobs.inspect.command import COMMAND

    sys.exit(COMMAND.main())
