"""Loads rows from before the slot, from a server or from files, consistent with the archive."""

import sys
from os.path import dirname, realpath

if __name__ == "__main__":
    sys.path.append(dirname(dirname(realpath(sys.argv[0]))))
    from pgoutput_etl.launcher import command

    sys.exit(command("snapshot").main())
