"""Doctor: what this machine has, what does not fit together, and what to do about it.

  ok     Python 3.11.7
  FAULT  GPU 0, NVIDIA A100-SXM4-40GB, has compute capability 8.0, and TensorFlow 1.14.0 is built for CUDA 10.0, which
         knows none above 7.5
         fix: use TensorFlow 2.x (TOWERS_TARGET=tf2 ./run), on which the same source runs

Nothing here imports TensorFlow before it is looked at, since a doctor must be able to say why that fails. Of GPUs tells
`nvidia-smi`, in the CSV that its manual documents (`nvidia-smi --help-query-gpu`).
"""

import os
import re
import subprocess
import sys
import threading
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from cores import count_cores
from usage_error import UsageError

_QUERY = ('index', 'name', 'driver_version', 'memory.total', 'compute_cap')
_SECONDS_TO_ANSWER = 60.0
_LEAST_MEMORY = 2e9
# For older drivers, which do not tell it: the capability from the name. The first that is found counts.
_CAPABILITIES = (
    (r'B[23]00\b', (10, 0)), (r'RTX 50\d\d|RTX PRO \d+ Blackwell', (12, 0)), (r'\bH[128]00\b|GH200', (9, 0)),
    (r'RTX 40\d\d|\bL40S?\b|\bL4\b|\bAda\b', (8, 9)), (r'\bA100\b|\bA30\b|\bA800\b', (8, 0)),
    (r'RTX 30\d\d|\bA(?:2|10|16|40)G?\b|RTX A\d{4}', (8, 6)),
    (r'RTX 20\d\d|GTX 16\d\d|\bT4\b|Quadro RTX|TITAN RTX', (7, 5)),
    (r'\bV100\b|TITAN V', (7, 0)), (r'\bP100\b', (6, 0)), (r'\bP4\b|\bP40\b|GTX 10\d\d|TITAN Xp', (6, 1)),
    (r'\bM40\b|\bM60\b|GTX 9\d\d', (5, 2)), (r'\bK80\b', (3, 7)), (r'\bK40', (3, 5)))
# For the CUDA that a TensorFlow is built with, the oldest driver on Linux (release notes of the CUDA toolkit).
_DRIVERS = {(10, 0): (410, 48), (10, 1): (418, 39), (10, 2): (440, 33), (11, 0): (450, 80), (12, 0): (525, 60),
            (13, 0): (580, 65)}


class Finding(NamedTuple):
  """What was looked at.

  Attributes:
    kind: 'ok', 'note' (worth knowing) or 'FAULT'.
    text: what is there.
    fix: what to do, or ''.
  """
  kind: str
  text: str
  fix: str = ''


class Gpu(NamedTuple):
  """A GPU as `nvidia-smi` tells it.

  Attributes:
    number: its index.
    name: its product name.
    driver: the driver's version, as (418, 67).
    memory_mib: of the GPU; None where it does not say.
    capability: the compute capability, as (7, 0); None where neither driver nor name tell it.
  """
  number: int
  name: str
  driver: Tuple[int, ...]
  memory_mib: Optional[int]
  capability: Optional[Tuple[int, int]]


class Build(NamedTuple):
  """What a TensorFlow was built for.

  Attributes:
    version: its own.
    cuda: as (10, 0); None for a build without.
    least: the lowest compute capability that it has code for; None where it does not say.
    most: the highest one that it can run on.
  """
  version: str
  cuda: Optional[Tuple[int, int]]
  least: Optional[Tuple[int, int]] = None
  most: Optional[Tuple[int, int]] = None


def examine(write: Callable[[str], Any] = print) -> bool:
  """Looks at everything and writes what it finds; returns whether nothing is at fault."""
  findings: List[Finding] = []

  def tell(more: Sequence[Finding]) -> bool:
    for finding in more:
      write(format_finding(finding))
    findings.extend(more)
    return all(finding.kind != 'FAULT' for finding in more)

  is_python_right = tell([check_python(sys.version_info[:3])])
  tell(check_machine())
  gpus, problems = find_gpus()
  tell(problems)
  if is_python_right and tell([check_import()]):
    from towers.devices import count_gpus
    build = find_build()
    tell(check_packages(build))
    tell(check_gpus(gpus, build))
    tell(check_visible(gpus, build, count_gpus()))
    tell([try_towers()])
  faults = sum(finding.kind == 'FAULT' for finding in findings)
  write('%d fault%s found' % (faults, '' if faults == 1 else 's') if faults else 'nothing is at fault')
  return not faults


def format_finding(finding: Finding) -> str:
  """Returns a finding in one line, and its fix in another."""
  fix = '\n       fix: %s' % finding.fix if finding.fix else ''
  return '%-6s %s%s' % (finding.kind, finding.text, fix)


def check_python(version: Sequence[int]) -> Finding:
  """Says whether there is a TensorFlow for this Python."""
  text = 'Python %s' % '.'.join(map(str, version))
  if tuple(version[:2]) == (3, 7) or (3, 10) <= tuple(version[:2]) <= (3, 13):
    return Finding('ok', text)
  return Finding('FAULT', text + ', for which there is no TensorFlow that towers runs on',
                 'use Python 3.7 (TensorFlow 1.14) or 3.10 to 3.13 (2.21); ./run finds one that is installed')


def check_machine() -> List[Finding]:
  """Tells cores and memory."""
  cores = count_cores()
  available = None
  try:
    with open('/proc/meminfo') as file:
      available = 1024.0 * int(re.findall(r'MemAvailable: +(\d+) kB', file.read())[0])
  except (OSError, IndexError):  # Not Linux.
    pass
  text = '%d core%s' % (cores, '' if cores == 1 else 's')
  if available is None:
    return [Finding('ok', text)]
  text += ', %.1f GB of memory free' % (available / 1e9)
  if available < _LEAST_MEMORY:
    return [Finding('note', text, 'end other programs, or use a smaller batch_size: a small run takes about 1 GB')]
  return [Finding('ok', text)]


def check_import() -> Finding:
  """Imports TensorFlow, and says what stands against it."""
  try:
    from tensorflow_v1 import tf
  except UsageError as error:
    return Finding('FAULT', str(error))
  except Exception as error:  # Whatever a broken installation raises is what the user must know.
    return Finding('FAULT', 'TensorFlow cannot be imported: %s: %s' % (type(error).__name__, error),
                   'let ./run make an environment with the versions this project is tested with')
  return Finding('ok', 'TensorFlow %s' % tf.__version__)


def check_packages(build: Build) -> List[Finding]:
  """Says which packages beside TensorFlow make trouble."""
  import numpy

  from tensorflow_v1 import load_keras
  findings = []
  if build.version.startswith('1.14') and tuple(map(int, numpy.__version__.split('.')[:2])) > (1, 16):
    findings.append(Finding('note', 'numpy %s makes TensorFlow 1.14 warn' % numpy.__version__,
                            'pip install numpy==1.16.6'))
  try:
    load_keras()
  except UsageError as error:
    findings.append(Finding('note', str(error), 'needed only for Keras models'))
  return findings


def find_build() -> Build:
  """Returns what the installed TensorFlow was built for; it must be imported already."""
  from tensorflow_v1 import tf
  if not tf.test.is_built_with_cuda():
    return Build(tf.__version__, None)
  if not hasattr(tf.sysconfig, 'get_build_info'):
    # The wheels of 1.13 and 1.14; they hold code for 3.5 to 7.0, which 7.5 runs as well.
    return Build(tf.__version__, (10, 0), (3, 5), (7, 5))
  info = tf.sysconfig.get_build_info()
  return parse_build(tf.__version__, info.get('cuda_version', ''), info.get('cuda_compute_capabilities', []))


def parse_build(version: str, cuda: str, capabilities: Sequence[str]) -> Build:
  """Returns a Build from what TensorFlow 2.x says of itself, as '12.5.1' and ['sm_60', …, 'compute_90'].

  Code for `compute_` is compiled for newer GPUs by their driver when it is first needed, so there is no highest.
  """
  numbers = [tuple(map(int, part)) for part in re.findall(r'_(\d+)(\d)\b', ' '.join(capabilities))]
  digits = re.findall(r'\d+', cuda)
  is_forward = any(name.startswith('compute_') for name in capabilities)
  return Build(version, (int(digits[0]), int((digits + ['0'])[1])) if digits else None,
               min(numbers, default=None), None if is_forward else max(numbers, default=None))  # type: ignore


def find_gpus(run: Callable[..., Any] = subprocess.run) -> Tuple[List[Gpu], List[Finding]]:
  """Asks nvidia-smi; returns the GPUs, and what stands against asking."""
  for fields in (_QUERY, _QUERY[:-1]):
    try:
      done = run(['nvidia-smi', '--query-gpu=' + ','.join(fields), '--format=csv,noheader,nounits'],
                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=30)
    except FileNotFoundError:
      return [], [Finding('note', 'no GPU: there is no nvidia-smi, so no NVIDIA driver. Towers stand on virtual CPU '
                          'devices', 'on a machine with a GPU, install its driver')]
    except (OSError, subprocess.TimeoutExpired) as error:
      return [], [Finding('FAULT', 'nvidia-smi does not answer: %s' % error,
                          'reload the driver or restart the machine')]
    if done.returncode == 0:
      gpus = parse_gpus(done.stdout)
      return gpus, [] if gpus else [
          Finding('note', 'no GPU: nvidia-smi lists none. Towers stand on virtual CPU devices')]
    # Older drivers do not know the last field.
    if 'not a valid field' not in done.stdout:
      break
  return [], [Finding('FAULT', 'nvidia-smi fails: %s' % ' '.join(done.stdout.split()),
                      'install a driver that fits this kernel, or restart the machine after an update of the driver')]


def parse_gpus(text: str) -> List[Gpu]:
  """Returns the GPUs of `nvidia-smi --query-gpu=index,name,driver_version,memory.total[,compute_cap]
  --format=csv,noheader,nounits`."""
  gpus = []
  for line in text.splitlines():
    cells = [cell.strip() for cell in line.split(',')]
    if len(cells) not in (len(_QUERY) - 1, len(_QUERY)) or not cells[0].isdigit():
      continue
    told = re.match(r'(\d+)\.(\d+)$', cells[4]) if len(cells) == len(_QUERY) else None
    capability = (int(told.group(1)), int(told.group(2))) if told else find_capability(cells[1])
    gpus.append(Gpu(int(cells[0]), cells[1], tuple(map(int, re.findall(r'\d+', cells[2]))),
                    int(cells[3]) if cells[3].isdigit() else None, capability))
  return gpus


def find_capability(name: str) -> Optional[Tuple[int, int]]:
  """Returns the compute capability of a GPU from its product name, or None for one that is not known here."""
  return next((capability for pattern, capability in _CAPABILITIES if re.search(pattern, name)), None)


def check_gpus(gpus: Sequence[Gpu], build: Build) -> List[Finding]:
  """Says for each GPU whether this TensorFlow and the driver can use it."""
  findings = []
  for gpu in gpus:
    text = 'GPU %d, %s' % (gpu.number, gpu.name)
    if build.cuda is None:
      findings.append(Finding('FAULT', '%s, and TensorFlow %s is built without CUDA' % (text, build.version),
                              _install(build)))
      continue
    known = 'TensorFlow %s is built for CUDA %d.%d' % ((build.version,) + build.cuda)
    least_driver = max((driver for cuda, driver in _DRIVERS.items() if cuda <= build.cuda), default=(0, 0))
    if gpu.capability and build.most and gpu.capability > build.most:
      findings.append(Finding(
          'FAULT', '%s, has compute capability %d.%d, and %s, which knows none above %d.%d'
          % ((text,) + gpu.capability + (known,) + build.most),
          'use TensorFlow 2.x (TOWERS_TARGET=tf2 ./run), on which the same source runs'))
    elif gpu.capability and build.least and gpu.capability < build.least:
      findings.append(Finding(
          'FAULT', '%s, has compute capability %d.%d, and %s, with code for %d.%d and above'
          % ((text,) + gpu.capability + (known,) + build.least),
          'use an older TensorFlow: 1.14 (TOWERS_TARGET=tf1 ./run, with Python 3.7) runs from 3.5 on'))
    elif gpu.driver < least_driver:
      findings.append(Finding(
          'FAULT', '%s, has the driver %s, and %s, which needs %d.%d or later'
          % ((text, '.'.join(map(str, gpu.driver)), known) + least_driver), 'install a newer NVIDIA driver'))
    else:
      memory = '' if gpu.memory_mib is None else ', {:,} MiB'.format(gpu.memory_mib)
      capability = ', compute capability %d.%d' % gpu.capability if gpu.capability else ''
      findings.append(Finding('ok', '%s%s%s, driver %s' % (text, capability, memory, '.'.join(map(str, gpu.driver)))))
  return findings


def check_visible(gpus: Sequence[Gpu], build: Build, seen: int) -> List[Finding]:
  """Says whether TensorFlow, which sees `seen` of them, sees the GPUs that the driver has."""
  if not gpus or build.cuda is None:
    return []
  hidden = os.environ.get('CUDA_VISIBLE_DEVICES')
  if seen == len(gpus):
    return [Finding('ok', 'TensorFlow sees %d of %d GPUs' % (seen, len(gpus)))]
  text = 'TensorFlow sees %d of %d GPUs' % (seen, len(gpus))
  if hidden is not None:
    return [Finding('note', '%s, with CUDA_VISIBLE_DEVICES=%s' % (text, hidden), 'unset it to see all')]
  return [Finding('FAULT', text, _install(build))]


def _install(build):
  if build.version.startswith('1.'):
    return ('pip uninstall tensorflow; pip install tensorflow-gpu==%s, and CUDA 10.0 with cuDNN 7 in LD_LIBRARY_PATH'
            % build.version)
  return "pip install 'tensorflow[and-cuda]==%s', which brings the CUDA libraries" % build.version


def try_towers(seconds: float = _SECONDS_TO_ANSWER) -> Finding:
  """Trains two staged towers, on GPUs if there are any, and one tower, and says whether they come to the same."""
  answers: List[Finding] = []
  thread = threading.Thread(target=lambda: answers.append(_compare_towers()), daemon=True)
  thread.start()
  thread.join(seconds)
  if answers:
    return answers[0]
  return Finding('FAULT', 'two staged towers did not come to an end within %g s' % seconds,
                 'see python main.py --check, and report it with all of the above')


def _compare_towers():
  from towers.devices import build_devices, count_gpus
  try:
    num_gpus = count_gpus()
    devices = build_devices(min(num_gpus, 2) or 2, 'gpu' if num_gpus else 'cpu')
    two, one = _train(devices), _train(build_devices(1, 'cpu'))
  except Exception as error:  # Of TensorFlow, of CUDA: whatever it is, it is the finding.
    reason = (str(error).splitlines() or [''])[0]
    return Finding('FAULT', 'two staged towers failed: %s: %s' % (type(error).__name__, reason),
                   'see the findings above; --device=cpu tries the program without GPUs')
  text = '%d staged tower%s on %s, 20 steps: loss %.6f, one tower %.6f' % (
      len(devices.names), '' if len(devices.names) == 1 else 's', ' and '.join(devices.names), two, one)
  if abs(two - one) <= 1e-3 * abs(one):
    return Finding('ok', text)
  return Finding('FAULT', text, 'a device computes wrongly: see python main.py --check')


def _train(devices):
  """Returns the loss of a small model after 20 steps on the towers, each with a staging area."""
  import numpy as np

  import towers
  from data import from_arrays
  from tensorflow_v1 import tf

  random = np.random.RandomState(0)
  points = random.randn(100, 4).astype(np.float32)
  examples = from_arrays(points, (points.sum(1) > 0).astype(np.int32), name='doctor')

  def model(batch, is_training):
    x, labels = batch
    logits = tf.matmul(x, tf.get_variable('weights', [4, 2])) + tf.get_variable('biases', [2])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=100, batch_size=10, num_towers=len(devices.names))
    feed = towers.build_feed(towers.build_inputs(examples, plan=plan, mode='split'), devices=devices.names,
                             staging_depth=1)
    store = towers.build_variable_store(devices=devices.names)
    averaged = towers.average_gradients(
        towers.build_towers(model, towers.build_batches(feed), devices=devices.names, store=store))
    train_op = towers.build_train_op(averaged, optimizer=tf.train.GradientDescentOptimizer(0.5))
    with tf.Session(config=towers.build_session_config(devices)) as session:
      session.run(tf.global_variables_initializer())
      feed.start(session)
      return [session.run([averaged.loss, train_op] + feed.put_ops)[0] for _ in range(20)][-1]
