"""Converts from the command line."""

import sys

from towers.data.convert.convert import main

if __name__ == '__main__':
  sys.exit(main())
