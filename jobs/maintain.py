"""Keeps a source's Delta tables and its ledger fast and small. Changes nothing without --execute."""

import sys

from pgoutput_etl.jobs.maintain.command import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main())
