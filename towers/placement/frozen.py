"""Frozen variables: no gradient, no slot and no update; they are read, saved and restored."""

from typing import Sequence

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.placement.patterns import choose_all, list_patterns


def freeze_variables(patterns: Sequence[str]) -> None:
  """Makes all variables that a pattern matches untrainable, once the first tower has made them."""
  trainable = tf.get_collection_ref(tf.GraphKeys.TRAINABLE_VARIABLES)
  names = [variable.op.name for variable in trainable]
  frozen = set(choose_all('frozen', patterns, names, what='trainable variable'))
  if patterns and len(frozen) == len(names):
    raise UsageError(f"frozen={','.join(list_patterns(patterns))} matches all {len(names)} "
                     'trainable variables, and leaves nothing to train: name those that shall '
                     'stay as they are.')
  trainable[:] = [variable for variable in trainable if variable.op.name not in frozen]
