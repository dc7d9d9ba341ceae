"""Fingerprint: a digest of all that the fastest settings depend on."""

import dataclasses
import glob
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import platform
import sys
from typing import List, Optional, Sequence

from towers.base.cores import count_cores
from towers.placement.cluster import ALONE, Cluster
from towers.settings.config import Config
from towers.settings.setting import is_function
from towers_tools.trials.timed_trial import LEFT_OUT, ROOT

_SOURCE = ('models', 'staging', 'towers')
# Neither speed nor losses of the first steps depend on these settings.
_IRRELEVANT = set(LEFT_OUT) - {'validation', 'validation_tower'} | {
    'steps', 'result_file', 'validate_every', 'checkpoint_every', 'keep_checkpoints',
    'on_full_disk', 'stall_seconds'}
_VARIABLES = ('TF_', 'XLA_', 'OMP_', 'CUDA_VISIBLE', 'NCCL_')


def fingerprint(config: Config, command: Sequence[str] = (), cluster: Cluster = ALONE) -> str:
  """Returns a digest of the run's settings, the machine, TensorFlow and the source."""
  parts = {name: value for name, value in dataclasses.asdict(config).items()
           if name not in _IRRELEVANT}
  parts['machine'] = [platform.machine(), _read('/proc/cpuinfo', 'model name'), count_cores(),
                      list_gpus()]
  hosts = {address.rpartition(':')[0] for address in cluster.addresses}
  parts['workers'] = [cluster.num_workers, len(hosts)]
  parts['tensorflow'] = [sys.version] + _find_tensorflow()
  parts['source'] = _digest_source(ROOT)
  parts['command'] = list(command)
  # Whatever lies beside a model or data of the user's own, which may import it.
  own = [_find_source(text) for text in (config.model, config.data) if is_function(text)]
  parts['own source'] = [_digest_files(glob.glob(os.path.join(os.path.dirname(path), '*.py')))
                         for path in own if path]
  parts['flags'] = {name: value for name, value in os.environ.items()
                    if name.startswith(_VARIABLES)}
  return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def _find_source(text: str) -> Optional[str]:
  """Returns the Python file of a function that a setting names, without importing it, or None."""
  place = text.rpartition(':')[0]
  if place.endswith('.py'):
    return place
  if place in sys.modules:
    return getattr(sys.modules[place], '__file__', None)
  if os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())
  try:
    spec = importlib.util.find_spec(place)
  except (ImportError, ValueError):
    return None
  return spec.origin if spec is not None else None


def _find_tensorflow():
  """Returns the path and time of TensorFlow's package, which stand for its version."""
  # Importing it would take seconds.
  spec = importlib.machinery.PathFinder.find_spec('tensorflow')
  return [spec.origin, os.stat(spec.origin).st_mtime_ns] if spec and spec.origin else []


def _digest_source(root):
  """Returns a digest of the modules that a run may load."""
  return _digest_files([
      path for folder in _SOURCE
      for path in glob.glob(os.path.join(root, folder, '**', '*.py'), recursive=True)])


def _digest_files(paths):
  digest = hashlib.sha256()
  for path in sorted(paths):
    with open(path, 'rb') as file:
      digest.update(file.read())
  return digest.hexdigest()


def list_gpus() -> List[str]:
  """Returns the lines in which NVIDIA's driver names each GPU, without TensorFlow."""
  folder = '/proc/driver/nvidia/gpus'
  names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
  return [_read(os.path.join(folder, name, 'information'), 'Model') for name in names]


def _read(path, key):
  """Returns the first line of a file that begins with `key`, or ''."""
  try:
    with open(path, encoding='utf-8') as file:
      return next((line.strip() for line in file if line.startswith(key)), '')
  except OSError:
    return ''
