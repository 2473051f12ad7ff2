"""Rebuilds tables from the archive: whole, for a range of commits, or as a side build as of a commit."""

import sys

from pgoutput_etl.jobs.backfill.command import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main())
