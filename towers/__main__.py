"""Trains a model on N towers: `python -m towers --help`."""

import sys

try:
  from towers.cli.command_line import main
except KeyboardInterrupt:  # While it loads.
  sys.exit(130)

if __name__ == '__main__':
  sys.exit(main(sys.argv))
