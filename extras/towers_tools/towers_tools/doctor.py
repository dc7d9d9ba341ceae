"""Doctor: what this machine has, what does not fit together, and how to fix it.

  ok     Python 3.11.7
  FAULT  GPU 0, NVIDIA A100-SXM4-40GB, has compute capability 8.0, and TensorFlow 1.14.0 is built …
         fix: use TensorFlow 2.x (TOWERS_TARGET=tf2 ./run), on which the same source runs

This module does not import TensorFlow, so that the doctor can say why an import fails.
"""

import sys
from typing import Any, Callable, List, Sequence

from towers.base.cores import count_cores
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.process.threads import start_thread
from towers_tools.finding import Finding, format_finding
from towers_tools.free_memory import find_free_memory
from towers_tools.gpus import find_gpus
from towers_tools.tensorflow_build import Build, check_gpus, check_visible, find_build

_SECONDS_TO_ANSWER = 60.0
_LEAST_MEMORY = 2e9


def examine(write: Callable[[str], Any] = write_line) -> bool:
  """Writes findings about this machine, and returns whether none of them is a fault."""
  findings: List[Finding] = []

  def report(more: Sequence[Finding]) -> bool:
    for finding in more:
      write(format_finding(finding))
    findings.extend(more)
    return all(finding.kind != 'FAULT' for finding in more)

  is_python_right = report([check_python(sys.version_info[:3])])
  report([check_machine()])
  gpus, problems = find_gpus()
  report(problems)

  if is_python_right and report([check_import()]):
    from towers.placement.devices import count_gpus
    build = find_build()
    report(check_packages(build))
    report(check_gpus(gpus, build))
    report(check_visible(gpus, build, count_gpus()))
    report([try_towers()])

  num_faults = sum(finding.kind == 'FAULT' for finding in findings)
  if num_faults:
    write(f"{num_faults} fault{'' if num_faults == 1 else 's'} found")
  else:
    write('nothing is at fault')
  return not num_faults


def check_python(version: Sequence[int]) -> Finding:
  """Returns whether a TensorFlow exists for this Python."""
  text = f"Python {'.'.join(map(str, version))}"
  if tuple(version[:2]) == (3, 7) or (3, 10) <= tuple(version[:2]) <= (3, 13):
    return Finding('ok', text)
  return Finding('FAULT', text + ', for which there is no TensorFlow that towers runs on',
                 'use Python 3.7 (TensorFlow 1.14) or 3.10 to 3.13 (2.21); ./run finds one that is '
                 'installed')


def check_machine() -> Finding:
  """Returns the number of cores and the free memory."""
  cores = count_cores()
  text = f"{cores} core{'' if cores == 1 else 's'}"
  available = find_free_memory()
  if available is None:  # Not Linux.
    return Finding('ok', text)
  text += f', {available / 1e9:.1f} GB of memory free'
  if available < _LEAST_MEMORY:
    return Finding('note', text, 'end other programs, or use a smaller batch_size: a small run '
                                 'takes about 1 GB')
  return Finding('ok', text)


def check_import() -> Finding:
  """Imports TensorFlow, and returns its version or why the import fails."""
  try:
    from towers.tensorflow_v1 import tf
  except UsageError as error:
    return Finding('FAULT', str(error))
  except Exception as error:  # A broken installation may raise anything.
    return Finding('FAULT', f'TensorFlow cannot be imported: {type(error).__name__}: {error}',
                   'let ./run make an environment with the versions this project is tested with')
  return Finding('ok', f'TensorFlow {tf.__version__}')


def check_packages(build: Build) -> List[Finding]:
  """Returns notes about packages that do not fit this TensorFlow."""
  import numpy

  from towers.tensorflow_v1 import load_keras
  findings = []
  major, minor = map(int, numpy.__version__.split('.')[:2])
  if build.version.startswith('1.14') and (major, minor) > (1, 16):
    findings.append(Finding('note', f'numpy {numpy.__version__} makes TensorFlow 1.14 warn',
                            'pip install numpy==1.16.6'))
  try:
    load_keras()
  except UsageError as error:
    findings.append(Finding('note', str(error), 'needed only for Keras models'))
  return findings


def try_towers(seconds: float = _SECONDS_TO_ANSWER) -> Finding:
  """Trains two staged towers, on GPUs if possible, and returns whether they equal one tower."""
  answers: List[Finding] = []
  start_thread(lambda: answers.append(_compare_towers()), 'doctor').join(seconds)
  if answers:
    return answers[0]
  return Finding('FAULT', f'two staged towers did not finish within {seconds:g} s',
                 'see python main.py --check, and report it with all of the above')


def _compare_towers():
  from towers.placement.devices import build_devices, count_gpus
  try:
    num_gpus = count_gpus()
    devices = build_devices(min(num_gpus, 2) or 2, 'gpu' if num_gpus else 'cpu')
    two, one = _train(devices), _train(build_devices(1, 'cpu'))
  except Exception as error:  # Any error of TensorFlow or CUDA is the finding.
    reason = (str(error).splitlines() or [''])[0]
    return Finding('FAULT', f'two staged towers failed: {type(error).__name__}: {reason}',
                   'see the findings above; --device=cpu tries the program without GPUs')
  plural = '' if len(devices.names) == 1 else 's'
  text = (f"{len(devices.names)} staged tower{plural} on {' and '.join(devices.names)}, 20 steps: "
          f'loss {two:.6f}, one tower {one:.6f}')
  if abs(two - one) <= 1e-3 * abs(one):
    return Finding('ok', text)
  return Finding('FAULT', text, 'a device computes wrongly: see python main.py --check')


def _train(devices):
  """Returns the loss of a small model after 20 steps on staged towers."""
  import numpy as np

  from towers.data import from_arrays
  from towers.placement.workers import Workers
  from towers.program import Program
  from towers.tensorflow_v1 import tf

  random = np.random.RandomState(0)
  points = random.randn(100, 4).astype(np.float32)
  examples = from_arrays(points, (points.sum(1) > 0).astype(np.int32), name='doctor')

  def model(batch, is_training):
    x, labels = batch
    logits = tf.matmul(x, tf.get_variable('weights', [4, 2])) + tf.get_variable('biases', [2])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

  with tf.Graph().as_default():
    program = Program(
        model, train=examples, batch_size=10, optimizer=tf.train.GradientDescentOptimizer(0.5),
        num_towers=len(devices.names), device=devices.kind.lower(), staging_depth=1,
        workers=Workers(1, 0))
    with program.session() as session:
      return [session.train() for _ in range(20)][-1]
