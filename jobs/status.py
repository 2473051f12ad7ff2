"""Reports the state of a source within seconds, from its ledger and its landing folder, without Spark."""

import sys
from os.path import dirname, realpath

if __name__ == "__main__":
    sys.path.append(dirname(dirname(realpath(sys.argv[0]))))
    from pgoutput_etl.launcher import command

    sys.exit(command("status").main())
