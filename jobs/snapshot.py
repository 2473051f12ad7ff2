"""Loads rows from before the slot, from a server or from files, consistent with the archive."""

import sys

from pgoutput_etl.jobs.snapshot.command import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main())
