"""Makes the embedded sample from the full Fashion-MNIST.

  python -m towers make_sample --data_dir=/usr/share/datasets/fashion-mnist \
    --output_dir=towers/data/fashion_mnist_sample

The same input gives files that are the same when unpacked; how they are packed depends on zlib.
"""

import argparse
import gzip
import os
import struct
from typing import Any, Sequence

import numpy as np

from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError
from towers_data.idx.idx_file import DTYPES, MAX_DIMENSIONS, read_idx

NUM_CLASSES = 10
NUM_TRAIN_PER_CLASS = 400
NUM_VALIDATION_PER_CLASS = 100
_SEED = 20170825


def make_sample(data_dir: str, output_dir: str) -> None:
  """Writes the four files of the sample from those of the full set, of the same names.

  Raises:
    UsageError: a file that cannot be read, or that has too few examples of a class; or a folder on
      another file system.
  """
  check_local_path('data_dir', data_dir)
  check_local_path('output_dir', output_dir)
  os.makedirs(output_dir, exist_ok=True)
  for split, num_per_class in (('train', NUM_TRAIN_PER_CLASS), ('t10k', NUM_VALIDATION_PER_CLASS)):
    images_name, labels_name = split + '-images-idx3-ubyte.gz', split + '-labels-idx1-ubyte.gz'
    images = read_idx(os.path.join(data_dir, images_name))
    labels = read_idx(os.path.join(data_dir, labels_name))
    chosen = choose(labels, num_per_class)
    write_idx(os.path.join(output_dir, images_name), images[chosen])
    write_idx(os.path.join(output_dir, labels_name), labels[chosen])


def choose(labels: np.ndarray, num_per_class: int) -> np.ndarray:
  """Returns the indices of the first examples of each class, shuffled by a fixed seed.

  `labels` are `[n]`, 0 to 9, and the indices `[10 * num_per_class]`.

  Raises:
    UsageError: too few examples of a class.
  """
  of_classes = [np.flatnonzero(labels == label)[:num_per_class] for label in range(NUM_CLASSES)]
  for label, of_class in enumerate(of_classes):
    if len(of_class) < num_per_class:
      raise UsageError(f'data_dir has {len(of_class)} examples of class {label}, and the sample '
                       f'takes {num_per_class}; give the folder of the full set.')
  # RandomState, whose stream numpy keeps the same through all its versions; default_rng's may
  # change.
  return np.random.RandomState(_SEED).permutation(np.concatenate(of_classes))


def write_idx(path: Any, array: np.ndarray) -> None:
  """Writes an array as an idx file, gzipped where the name ends in .gz; replaces a file.

  The same array gives the same bytes every time: the gzip header carries neither a time nor a name.

  Raises:
    UsageError: the array has no dtype of `DTYPES`, in any byte order, no dimension, or one of 0.
  """
  codes = [code for code, dtype in DTYPES.items() if dtype == array.dtype.newbyteorder('>')]
  if not codes:
    raise UsageError(f"{path}: idx cannot hold dtype {array.dtype}; convert the array to one of "
                     f"{', '.join(dtype.name for dtype in DTYPES.values())}.")
  if not 1 <= array.ndim <= MAX_DIMENSIONS or 0 in array.shape:
    raise UsageError(f'{path}: idx cannot hold shape {array.shape}; it needs 1 to '
                     f'{MAX_DIMENSIONS} dimensions, each of 1 or more.')
  header = struct.pack(f'>BBBB{array.ndim}I', 0, 0, codes[0], array.ndim, *array.shape)
  content = header + array.astype(DTYPES[codes[0]]).tobytes()
  with open(path, 'wb') as file:
    if os.fspath(path).endswith('.gz'):
      with gzip.GzipFile(filename='', mode='wb', compresslevel=9, fileobj=file, mtime=0) as zipped:
        zipped.write(content)
    else:
      file.write(content)


def main(arguments: Sequence[str]) -> None:
  """Makes the sample from the command line."""
  parser = argparse.ArgumentParser(
      prog='python -m towers make_sample', description='Makes the embedded sample.')
  parser.add_argument('--data_dir', required=True,
                      help='folder of the full set, four gzipped idx files')
  parser.add_argument('--output_dir', required=True, help='folder of the sample, four files too')
  flags = parser.parse_args(arguments)
  make_sample(flags.data_dir, flags.output_dir)
