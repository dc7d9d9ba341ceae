"""Starts the measurement of the zoo: `python -m benchmarks.memory`."""

from benchmarks.memory.zoo import main

if __name__ == '__main__':
  main()
