"""Writes a first configuration for a landing folder."""

import sys
from os.path import dirname, realpath

if __name__ == "__main__":
    sys.path.append(dirname(dirname(realpath(sys.argv[0]))))
    from pgoutput_etl.launcher import command

    sys.exit(command("init").main())
