"""Trains a model on N towers: `python -m towers --help`."""

import sys

from towers.command_line import main

if __name__ == '__main__':
  sys.exit(main(sys.argv))
