"""Rebuilds tables from the archive: whole, for a range of commits, or as a side build as of a commit."""

import sys
from os.path import dirname, realpath

if __name__ == "__main__":
    sys.path.append(dirname(dirname(realpath(sys.argv[0]))))
    from pgoutput_etl.launcher import command

    sys.exit(command("backfill").main())
