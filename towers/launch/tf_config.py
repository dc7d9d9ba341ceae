"""`python -m towers.launch.tf_config`, of the annex towers-launch."""

from towers.annexes import run

if __name__ == '__main__':
  run('python -m towers.launch.tf_config')
