"""Extras: packages beside towers, and what of them is asked for by a flag, a name or a command.

  towers_data      readers of named data sets, and converters
  towers_launch    starts and ends the workers on one machine, and all again when one fails
  towers_tools     looks at a machine, a graph, a run and for faster settings; exports models

A clone has them in extras/. Nothing here imports one before it is asked for: training needs none.
"""

import importlib
import os
import sys
from typing import Any, Sequence

from towers.base.installed import __version__
from towers.base.output import open_closed_streams
from towers.base.usage_error import UsageError

# What is asked for, and the function that does it.
FUNCTIONS = {
    '--autotune': 'towers_tools.trials.autotune:autotune',
    '--doctor': 'towers_tools.doctor:examine',
    '--export_dir': 'towers_tools.serving.export:prepare_export',
    '--find_batch': 'towers_tools.trials.find_batch:find_batch',
    '--input_only': 'towers_tools.measure_input:measure_input',
    '--predict': 'towers_tools.serving.predict:predict',
    'an evaluator': 'towers_tools.evaluator:evaluate',
    'images to predict': 'towers_data.image_folder:load_images',
    'data=cifar10': 'towers_data.cifar:load_cifar10',
    'data=cifar100': 'towers_data.cifar:load_cifar100',
    'data=fashion_mnist': 'towers_data.idx.idx_folder:load_fashion_mnist',
    'data=images': 'towers_data.image_folder:load_image_folder',
    'data=mnist': 'towers_data.idx.idx_folder:load_mnist',
    'data=npy': 'towers_data.npy_folder:load_npy',
    'data=synthetic': 'towers_data.synthetic:load',
    'data=tfds': 'towers_data.tfds_folder:load_tfds_folder',
    'data=tfrecord': 'towers_data.tfrecord_folder:load_tfrecord_folder',
    'report': 'towers_tools.report:Report',
    'trace_steps': 'towers_tools.timeline:Timeline',
    'towers.check_inputs': 'towers_tools.inputs:check_inputs',
    'towers.data.decode_images': 'towers_data.encoded_images:decode_images',
    'towers.data.from_tfds': 'towers_data.tfds_folder:from_tfds',
    'towers.data.load_cifar': 'towers_data.cifar:load_cifar',
    'towers.data.load_idx_folder': 'towers_data.idx.idx_folder:load_idx_folder',
    'towers.data.load_image_folder': 'towers_data.image_folder:load_image_folder',
    'towers.data.load_npy': 'towers_data.npy_folder:load_npy',
    'towers.data.load_synthetic': 'towers_data.synthetic:load_synthetic',
    'towers.data.load_tfds_folder': 'towers_data.tfds_folder:load_tfds_folder',
    'towers.data.load_tfrecord_folder': 'towers_data.tfrecord_folder:load_tfrecord_folder',
    'towers.export': 'towers_tools.serving.export:write_best',
    'workers on loopback': 'towers_launch.loopback:refuse_other_machines',
    'python -m towers convert': 'towers_data.convert:main',
    'python -m towers make_sample': 'towers_data.idx.make_sample:main',
    'python -m towers report': 'towers_tools.page:main',
    'python -m towers launch': 'towers_launch.__main__:main',
    'python -m towers tf_config': 'towers_launch.tf_config:main'}
# In a clone; of an installed wheel there is no such folder.
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'extras')


def load_extra(asked: str) -> Any:
  """Returns the function for what is asked; raises a UsageError if its package is not installed."""
  module, function = FUNCTIONS[asked].split(':')
  package = module.split('.')[0]
  find_in_clone()
  try:
    return getattr(importlib.import_module(module), function)
  except ModuleNotFoundError as missing:
    if missing.name != package:
      raise
    name = package.replace('_', '-')
    raise UsageError(f'{asked} needs the package {name}, which is not installed: install its wheel '
                     f'as that of towers, pip install {package}-{__version__}-py3-none-any.whl; in '
                     f'a clone, pip wheel --no-deps extras/{package} makes it.') from None


def find_in_clone() -> None:
  """Lets the packages of a clone be imported, in place of installed ones."""
  for package in sorted({target.split('.')[0] for target in FUNCTIONS.values()}):
    folder = os.path.join(FOLDER, package)
    if os.path.isdir(folder) and folder not in sys.path:
      sys.path.insert(0, folder)


def run(asked: str, arguments: Sequence[str]) -> int:
  """Runs a command of extras/, a function of its arguments; returns the exit code."""
  open_closed_streams()
  try:
    return load_extra(asked)(arguments) or 0
  except UsageError as error:
    return error.tell()
