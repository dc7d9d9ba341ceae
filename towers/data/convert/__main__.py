"""`python -m towers.data.convert`, of the annex towers-data."""

from towers.annexes import run

if __name__ == '__main__':
  run('python -m towers.data.convert')
