"""GPUs: what the driver has, what the installed TensorFlow was built for, and whether the two fit.

Of GPUs tells the driver's own library, NVML, which Python reaches by `pynvml` of the package
nvidia-ml-py. Where that fails, `nvidia-smi` does, in the CSV that its manual documents (`nvidia-smi
--help-query-gpu`), or says what is wrong.
"""

import os
import re
import subprocess
import threading
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from towers.training.tools.fact import Finding

_QUERY = ('index', 'name', 'driver_version', 'memory.total', 'compute_cap')
_SECONDS_TO_ANSWER = 30.0
# For the CUDA that a TensorFlow is built with, the oldest driver on Linux (release notes of the
# CUDA toolkit).
_DRIVERS = {(10, 0): (410, 48), (10, 1): (418, 39), (10, 2): (440, 33), (11, 0): (450, 80),
            (12, 0): (525, 60), (13, 0): (580, 65)}


class Gpu(NamedTuple):
  """A GPU as its driver tells it.

  Attributes:
    number: its index.
    name: its product name.
    driver: the driver's version, as (418, 67).
    memory_mib: of the GPU; None where it does not say.
    capability: the compute capability, as (7, 0); None where the `nvidia-smi` of an older driver
      does not tell it.
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


def ask_driver(seconds: float = _SECONDS_TO_ANSWER) -> Optional[List[Gpu]]:
  """Returns the GPUs of the driver, or None where it cannot be asked, fails, or does not answer."""
  answers: List[Optional[List[Gpu]]] = []
  thread = threading.Thread(target=lambda: answers.append(_ask_nvml()), daemon=True)
  thread.start()
  thread.join(seconds)
  return answers[0] if answers else None


def _ask_nvml():
  try:
    import pynvml
    pynvml.nvmlInit()
    try:
      driver = tuple(map(int, re.findall(r'\d+', pynvml.nvmlSystemGetDriverVersion())))
      return [_describe(pynvml, number, driver) for number in range(pynvml.nvmlDeviceGetCount())]
    finally:
      pynvml.nvmlShutdown()
  except Exception:  # Whatever it is, nvidia-smi meets it as well, and has words for it.
    return None


def _describe(pynvml, number, driver):
  gpu = pynvml.nvmlDeviceGetHandleByIndex(number)
  try:
    memory_mib = pynvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20
  except pynvml.NVMLError_NotSupported:  # It has none of its own, but shares that of the machine.
    memory_mib = None
  return Gpu(number, pynvml.nvmlDeviceGetName(gpu), driver, memory_mib,
             pynvml.nvmlDeviceGetCudaComputeCapability(gpu))


def find_gpus(
    run: Callable[..., Any] = subprocess.run,
    ask: Callable[[], Optional[List[Gpu]]] = ask_driver) -> Tuple[List[Gpu], List[Finding]]:
  """Asks the driver, or else nvidia-smi; returns the GPUs, and what stands against asking."""
  told = ask()
  if told is not None:
    return told, [] if told else [_no_gpu('the NVIDIA driver lists none')]
  for fields in (_QUERY, _QUERY[:-1]):
    try:
      done = run(['nvidia-smi', '--query-gpu=' + ','.join(fields), '--format=csv,noheader,nounits'],
                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                 timeout=_SECONDS_TO_ANSWER)
    except FileNotFoundError:
      return [], [_no_gpu('there is no nvidia-smi, so no NVIDIA driver',
          'on a machine with a GPU, install its driver')]
    except (OSError, subprocess.TimeoutExpired) as error:
      return [], [Finding('FAULT', f'nvidia-smi does not answer: {error}',
                          'reload the driver or restart the machine')]
    if done.returncode == 0:
      gpus = parse_gpus(done.stdout)
      return gpus, [] if gpus else [_no_gpu('nvidia-smi lists none')]
    # Older drivers do not know the last field.
    if 'not a valid field' not in done.stdout:
      break
  return [], [Finding('FAULT', f"nvidia-smi fails: {' '.join(done.stdout.split())}",
                      'install a driver that fits this kernel, or restart the machine after an '
                      'update of the driver')]


def _no_gpu(reason, fix=''):
  return Finding('note', f'no GPU: {reason}. Towers stand on virtual CPU devices', fix)


def parse_gpus(text: str) -> List[Gpu]:
  """Returns the GPUs of `nvidia-smi
  --query-gpu=index,name,driver_version,memory.total[,compute_cap] --format=csv,noheader,nounits`.
  """
  gpus = []
  for line in text.splitlines():
    cells = [cell.strip() for cell in line.split(',')]
    if len(cells) not in (len(_QUERY) - 1, len(_QUERY)) or not cells[0].isdigit():
      continue
    told = re.match(r'(\d+)\.(\d+)$', cells[4]) if len(cells) == len(_QUERY) else None
    capability = (int(told.group(1)), int(told.group(2))) if told else None
    gpus.append(Gpu(int(cells[0]), cells[1], tuple(map(int, re.findall(r'\d+', cells[2]))),
                    int(cells[3]) if cells[3].isdigit() else None, capability))
  return gpus


def find_build() -> Build:
  """Returns what the installed TensorFlow was built for; it must be imported already."""
  from tensorflow_v1 import tf
  if not tf.test.is_built_with_cuda():
    return Build(tf.__version__, None)
  if not hasattr(tf.sysconfig, 'get_build_info'):
    # The wheels of 1.13 and 1.14; they hold code for 3.5 to 7.0, which 7.5 runs as well.
    return Build(tf.__version__, (10, 0), (3, 5), (7, 5))
  info = tf.sysconfig.get_build_info()
  return parse_build(tf.__version__, info.get('cuda_version', ''), info.get(
      'cuda_compute_capabilities', []))


def parse_build(version: str, cuda: str, capabilities: Sequence[str]) -> Build:
  """Returns a Build from what TensorFlow 2.x says of itself, as '12.5.1' and ['sm_60', …,
  'compute_90'].

  Code for `compute_` is compiled for newer GPUs by their driver when it is first needed, so there
  is no highest.
  """
  numbers = [tuple(map(int, part)) for part in re.findall(r'_(\d+)(\d)\b', ' '.join(capabilities))]
  digits = re.findall(r'\d+', cuda)
  is_forward = any(name.startswith('compute_') for name in capabilities)
  cuda_version = (int(digits[0]), int((digits + ['0'])[1])) if digits else None
  least = min(numbers, default=None)
  most = None if is_forward else max(numbers, default=None)
  return Build(version, cuda_version, least, most)  # type: ignore


def check_gpus(gpus: Sequence[Gpu], build: Build) -> List[Finding]:
  """Says for each GPU whether this TensorFlow and the driver can use it."""
  findings = []
  for gpu in gpus:
    text = f'GPU {gpu.number}, {gpu.name}'
    if build.cuda is None:
      findings.append(Finding('FAULT', f'{text}, and TensorFlow {build.version} is built without '
                                       'CUDA',
                              _install(build)))
      continue
    known = 'TensorFlow %s is built for CUDA %d.%d' % ((build.version,) + build.cuda)
    least_driver = max((driver for cuda, driver in _DRIVERS.items() if cuda <= build.cuda),
                       default=(0, 0))
    if gpu.capability and build.most and gpu.capability > build.most:
      findings.append(Finding(
          'FAULT', '%s, has compute capability %d.%d, and %s, which knows none above %d.%d'
          % ((text,) + gpu.capability + (known,) + build.most),
          'use TensorFlow 2.x (TOWERS_TARGET=tf2 ./run), on which the same source runs'))
    elif gpu.capability and build.least and gpu.capability < build.least:
      findings.append(Finding(
          'FAULT', '%s, has compute capability %d.%d, and %s, with code for %d.%d and above'
          % ((text,) + gpu.capability + (known,) + build.least),
          'use an older TensorFlow: 1.14 (TOWERS_TARGET=tf1 ./run, with Python 3.7) runs from 3.5 '
          'on'))
    elif gpu.driver < least_driver:
      findings.append(Finding(
          'FAULT', '%s, has the driver %s, and %s, which needs %d.%d or later'
          % ((text, '.'.join(map(str, gpu.driver)), known) + least_driver),
          'install a newer NVIDIA driver'))
    else:
      memory = '' if gpu.memory_mib is None else f', {gpu.memory_mib:,} MiB'
      capability = ', compute capability %d.%d' % gpu.capability if gpu.capability else ''
      findings.append(Finding('ok', f"{text}{capability}{memory}, driver "
                                    f"{'.'.join(map(str, gpu.driver))}"))
  return findings


def check_visible(gpus: Sequence[Gpu], build: Build, seen: int) -> List[Finding]:
  """Says whether TensorFlow, which sees `seen` of them, sees the GPUs that the driver has."""
  if not gpus or build.cuda is None:
    return []
  hidden = os.environ.get('CUDA_VISIBLE_DEVICES')
  if seen == len(gpus):
    return [Finding('ok', f'TensorFlow sees {seen} of {len(gpus)} GPUs')]
  text = f'TensorFlow sees {seen} of {len(gpus)} GPUs'
  if hidden is not None:
    return [Finding('note', f'{text}, with CUDA_VISIBLE_DEVICES={hidden}', 'unset it to see all')]
  return [Finding('FAULT', text, _install(build))]


def _install(build):
  if build.version.startswith('1.'):
    return (f'pip uninstall tensorflow; pip install tensorflow-gpu=={build.version}, and CUDA 10.0 '
            'with cuDNN 7 in LD_LIBRARY_PATH')
  return f"pip install 'tensorflow[and-cuda]=={build.version}', which brings the CUDA libraries"
