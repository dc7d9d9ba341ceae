"""A worker's server ends with its process: a second program there trains on it, or is refused."""

import re
import subprocess
import sys

import pytest

from tests import ROOT
from tests.harness.in_process_cluster import find_ports
from tests.harness.processes import clean_environment, run_python
from towers_launch.tf_config import format_tf_config

# Two sessions, of which one refuses a checkpoint and goes on; a whole training; and a program for
# which the server has too few devices.
CHILD = '''
import numpy as np
import towers
from towers.tensorflow_v1 import tf

random = np.random.RandomState(0)
examples = towers.from_arrays(np.float32(random.randn(30, 2)), random.randint(0, 2, 30))

def model(batch, is_training):
  features, labels = batch
  logits = tf.matmul(features, tf.get_variable('weights', [2, 2]))
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

def build(num_towers):
  return towers.Program(model, train=examples, optimizer=tf.train.GradientDescentOptimizer(0.1),
                        batch_size=10, num_towers=num_towers, device='cpu')

program = build(1)
for index in range(2):
  with program.session() as session:
    if index:
      try:
        session.restore('nowhere', best=True)
      except towers.UsageError as error:
        print('no checkpoint', error, flush=True)
    losses = [session.train() for _ in range(4)]
  print('loss', losses[-1].hex(), flush=True)
result = towers.train(program, steps=4, quiet=True)
print('loss', float(result['train_loss']).hex(), flush=True)
with tf.Graph().as_default(), build(2).session():
  pass
'''


@pytest.mark.nightly
def test_programs_of_one_process_train_on_the_same_server_or_are_refused(tmp_path):
  (tmp_path / 'child.py').write_text(CHILD)
  done = run_python('-m', 'towers', 'launch', '--workers=2', '--restarts=0', '--', sys.executable,
                    str(tmp_path / 'child.py'), env=clean_environment(PYTHONPATH=ROOT),
                    stderr=subprocess.STDOUT)
  # The last program ends both: as main.py does, without a trace.
  assert done.returncode == 2 and 'Traceback' not in done.stdout, done.stdout
  losses = re.findall('loss (0x.*)', done.stdout)
  assert len(losses) == 6 and len(set(losses)) == 1, done.stdout
  assert len(re.findall('no checkpoint .*nowhere', done.stdout)) == 2, done.stdout
  refusals = re.findall('towers: error: (.*)', done.stdout)
  assert refusals and all('give both programs the same num_towers' in refusal
                          for refusal in refusals), done.stdout


# Ten workers need 128 files: the soft limit is raised to it, the hard one is not.
@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('limit, code, said', [
    ('-n 70', 2, 'Each of 10 workers needs up to 128 open files, and this process may have 70 at'),
    ('-Sn 70', 75, '128 files, start_seconds'), ('-n 256', 75, '256 files, start_seconds')])
def test_a_worker_without_files_or_without_the_others_ends_in_a_line(limit, code, said, tmp_path):
  child = CHILD.replace('range(2)', 'range(0)').replace('quiet', 'start_seconds=1, quiet')
  (tmp_path / 'child.py').write_text(f"""
import atexit, resource
atexit.register(lambda: print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 'files'))
{child}""")
  config = format_tf_config([f'127.0.0.1:{port}' for port in find_ports(10)], 'worker', 0)
  done = subprocess.run(
      ['bash', '-c', f'ulimit {limit}; exec "$0" "$@"', sys.executable,
       str(tmp_path / 'child.py')], cwd=ROOT,
      env=clean_environment(PYTHONPATH=ROOT, TF_CONFIG=config), stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT, text=True, timeout=120)
  assert done.returncode == code and 'Traceback' not in done.stdout, done.stdout
  assert all(words in done.stdout for words in said.split(', ')), done.stdout
