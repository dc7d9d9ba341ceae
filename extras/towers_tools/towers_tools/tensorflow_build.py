"""TensorFlow's build: the CUDA and the GPUs that the installed TensorFlow was built for."""

import os
import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

from towers_tools.finding import Finding
from towers_tools.gpus import Gpu

# The oldest Linux driver for each CUDA (release notes of the CUDA toolkit).
_DRIVERS = {(10, 0): (410, 48), (10, 1): (418, 39), (10, 2): (440, 33), (11, 0): (450, 80),
            (12, 0): (525, 60), (13, 0): (580, 65)}


class Build(NamedTuple):
  """What a TensorFlow was built for."""
  version: str  # Of TensorFlow.
  cuda: Optional[Tuple[int, int]]  # As (10, 0); None for a build without CUDA.
  least: Optional[Tuple[int, int]] = None  # Lowest compute capability with code; None if unknown.
  most: Optional[Tuple[int, int]] = None  # Highest that it runs on; None for no limit.


def find_build() -> Build:
  """Returns the build of the installed TensorFlow, which must be imported already."""
  from towers.tensorflow_v1 import tf
  if not tf.test.is_built_with_cuda():
    return Build(tf.__version__, cuda=None)
  if not hasattr(tf.sysconfig, 'get_build_info'):
    # The wheels of 1.13 and 1.14 hold code for 3.5 to 7.0, which 7.5 runs as well.
    return Build(tf.__version__, cuda=(10, 0), least=(3, 5), most=(7, 5))
  info = tf.sysconfig.get_build_info()
  capabilities = info.get('cuda_compute_capabilities', [])
  return parse_build(tf.__version__, info.get('cuda_version', ''), capabilities)


def parse_build(version: str, cuda: str, capabilities: Sequence[str]) -> Build:
  """Returns a Build from TensorFlow 2.x's '12.5.1' and ['sm_60', …, 'compute_90'].

  Drivers compile `compute_` code for newer GPUs when they first run it, so it sets no upper limit.
  """
  known = [(int(major), int(minor))
           for major, minor in re.findall(r'_(\d+)(\d)\b', ' '.join(capabilities))]
  digits = [int(part) for part in re.findall(r'\d+', cuda)] + [0]
  runs_on_newer = any(name.startswith('compute_') for name in capabilities)
  return Build(version, cuda=(digits[0], digits[1]) if len(digits) > 1 else None,
               least=min(known, default=None),
               most=None if runs_on_newer else max(known, default=None))


def check_gpus(gpus: Sequence[Gpu], build: Build) -> List[Finding]:
  """Returns for each GPU whether this TensorFlow and the driver can use it."""
  return [_check_gpu(gpu, build) for gpu in gpus]


def _check_gpu(gpu, build):
  name = f'GPU {gpu.device_index}, {gpu.name}'
  if build.cuda is None:
    return Finding('FAULT', f'{name}, and TensorFlow {build.version} is built without CUDA',
                   _install(build))

  built = f'TensorFlow {build.version} is built for CUDA {_dotted(build.cuda)}'
  capability = gpu.capability and _dotted(gpu.capability)
  driver = _dotted(gpu.driver)
  if gpu.capability and build.most and gpu.capability > build.most:
    return Finding(
        'FAULT', f'{name}, has compute capability {capability}, and {built}, which knows none '
                 f'above {_dotted(build.most)}',
        'use TensorFlow 2.x (TOWERS_TARGET=tf2 ./run), on which the same source runs')
  if gpu.capability and build.least and gpu.capability < build.least:
    return Finding(
        'FAULT', f'{name}, has compute capability {capability}, and {built}, with code for '
                 f'{_dotted(build.least)} and above',
        'use an older TensorFlow: 1.14 (TOWERS_TARGET=tf1 ./run, with Python 3.7) runs from 3.5 on')
  oldest = max((oldest for cuda, oldest in _DRIVERS.items() if cuda <= build.cuda),
               default=(0, 0))
  if gpu.driver < oldest:
    return Finding('FAULT', f'{name}, has the driver {driver}, and {built}, which needs '
                            f'{_dotted(oldest)} or later', 'install a newer NVIDIA driver')

  facts = [name]
  if capability:
    facts.append(f'compute capability {capability}')
  if gpu.memory_mib is not None:
    facts.append(f'{gpu.memory_mib:,} MiB')
  return Finding('ok', ', '.join(facts + [f'driver {driver}']))


def check_visible(gpus: Sequence[Gpu], build: Build, num_visible: int) -> List[Finding]:
  """Returns whether TensorFlow sees all GPUs of the driver."""
  if not gpus or build.cuda is None:
    return []
  text = f'TensorFlow sees {num_visible} of {len(gpus)} GPUs'
  if num_visible == len(gpus):
    return [Finding('ok', text)]
  chosen = os.environ.get('CUDA_VISIBLE_DEVICES')
  if chosen is not None:
    return [Finding('note', f'{text}, with CUDA_VISIBLE_DEVICES={chosen}', 'unset it to see all')]
  return [Finding('FAULT', text, _install(build))]


def _install(build):
  if build.version.startswith('1.'):
    return (f'pip uninstall tensorflow; pip install tensorflow-gpu=={build.version}, and CUDA 10.0 '
            'with cuDNN 7 in LD_LIBRARY_PATH')
  return f"pip install 'tensorflow[and-cuda]=={build.version}', which brings the CUDA libraries"


def _dotted(version):
  return '.'.join(map(str, version))
