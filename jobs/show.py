"""Shows some rows of a Delta table."""

import sys

from pgoutput_etl.commands.show import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main())
