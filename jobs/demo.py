"""Turns the archive of a small shop into Delta tables."""

import sys
from os.path import dirname, realpath

if __name__ == "__main__":
    sys.path.append(dirname(dirname(realpath(sys.argv[0]))))
    from pgoutput_etl.launcher import command

    sys.exit(command("demo").main())
