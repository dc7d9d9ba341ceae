"""Trains a repository's model as a worker with one tower; the chief pickles what it has trained.

  python -m towers launch --workers=2 -- python -m tests.gallery.field.worker REPOSITORY FILE
"""

import os
import pickle
import sys

from tests.gallery.field.training import train
from towers.placement.cluster import read_cluster

if __name__ == '__main__':
  name, path = sys.argv[1:]
  trained = train(name, 1)
  if read_cluster(os.environ).is_chief:
    with open(path, 'wb') as file:
      pickle.dump(tuple(trained), file)
