"""Replicas: a copy of all weights on every tower's device, and how all copies stay the same.

                tower 0's device                   tower 1's device
  weights       hidden/weights                     copies/tower_1/hidden/weights
  slots         hidden/weights/Momentum            copies/tower_1/hidden/weights/Momentum
  gradient      own ─► all-reduce ─► apply         own ─► all-reduce ─► apply

The first tower's are the program's variables, which checkpoints hold under names without a tower. All others are
local variables, which a run sets from the first ones when it starts (`spread_op`); every step then does the same to
all of them. That they are still the same is looked at before anything is saved.
"""

import contextlib
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from tensorflow_v1 import tf
from towers.inputs import HOST

_COPY = 'copies/tower_%d/'
_IS_COPY = re.compile(r'copies/tower_(\d+)/(.*)')
# Bits are compared as whole numbers of the same size: no number is equal to nan.
_WHOLE = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}


class Copies(NamedTuple):
  """The copies of a program's variables.

  Attributes:
    spread_op: sets all of them to the first tower's.
    same: `[copies]` bool, whether each is the first tower's to the bit.
    names: for each copy the name of the variable.
    towers: for each copy its tower.
    variables: the copies, slots included.
  """
  spread_op: Any
  same: Any
  names: List[str]
  towers: List[int]
  variables: List[Any]


def rounding_alike(is_needed: bool) -> Any:
  """Returns a context for ops that must give the same bits on every tower and worker: XLA leaves them alone.

  What it compiles it rounds less often, and it compiles a tower's ops together with whatever stands beside them there.
  """
  return tf.xla.experimental.jit_scope(compile_ops=False) if is_needed else contextlib.nullcontext()


def make_copy(next_creator: Callable[..., Any], settings: Dict[str, Any], variable: Any, *, tower: int,
              device: str) -> Any:
  """Makes a copy of a variable; for a variable creator, which got `next_creator` and `settings`."""
  with tf.device(device), tf.name_scope(None):
    return next_creator(**dict(settings, name=_COPY % tower + variable.op.name, initial_value=variable.initial_value,
                               trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES]))


def slot_creator(next_creator: Callable[..., Any], **settings: Any) -> Any:
  """Makes an optimizer's variable; what it keeps for a copy is a copy too. For `tf.variable_creator_scope`."""
  if _IS_COPY.match(settings.get('name') or ''):
    settings['collections'] = [tf.GraphKeys.LOCAL_VARIABLES]
  return next_creator(**settings)


def build_copies() -> Optional[Copies]:
  """Finds all copies in the graph, once the train op is built; None where variables are shared."""
  firsts = {variable.op.name: variable for variable in tf.global_variables()}
  names: List[str] = []
  towers: List[int] = []
  copies: List[Any] = []
  for variable in tf.local_variables():
    match = _IS_COPY.match(variable.op.name)
    if match:
      towers.append(int(match.group(1)))
      names.append(match.group(2))
      copies.append(variable)
  if not copies:
    return None
  spread, same = [], []
  with tf.name_scope('copies'):
    for name, copy in zip(names, copies):
      with tf.device(copy.device):
        value = firsts[name].read_value()
        spread.append(copy.assign(value, read_value=False))
        same.append(tf.reduce_all(tf.equal(_bits(copy.read_value()), _bits(value))))
    with tf.device(HOST):
      return Copies(tf.group(*spread, name='spread'), tf.stack(same), names, towers, copies)


def _bits(value):
  return value if value.dtype.is_integer or value.dtype.is_bool else tf.bitcast(value, _WHOLE[value.dtype.size])
