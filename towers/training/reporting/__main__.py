"""`python -m towers.training.reporting`, of the annex towers-tools."""

from towers.annexes import run

if __name__ == '__main__':
  run('python -m towers.training.reporting')
