"""Reports what landed files contain, without Delta, a ledger or a configuration."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
# Python searches a script's folder first, where this file would shadow the standard library's inspect for every job
# that runs without spark-submit.sh.
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _HERE]  # noqa: PTH100

if __name__ == "inspect":
    del sys.modules["inspect"]
    import inspect  # noqa: F401 # the standard library's, for the importing module

if __name__ == "__main__":
    sys.path.append(os.path.dirname(_HERE))  # noqa: PTH120 # for a clone without an installed package
    from pgoutput_etl.jobs.inspect.command import COMMAND

    sys.exit(COMMAND.main())
