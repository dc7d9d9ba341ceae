"""Philox: random numbers by a seed, from any block of the generator on, on both targets.

The generator counts blocks of four numbers of 32 bits (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3"). 2.x has ops that begin at a block; those of 1.14 begin at the first.
"""

from typing import Any, Dict

from towers.placement.host import HOST
from towers.tensorflow_v1 import Operation, Tensor, tf

HAS_COUNTER = hasattr(tf.raw_ops, 'StatelessRandomUniformV2')
_PHILOX = 1
# By the distribution, which is the type of an op with a state, the type of one without.
STATELESS = {kind: 'Stateless' + kind.replace('Standard', '') + 'V2' * HAS_COUNTER for kind in (
    'RandomUniform', 'RandomStandardNormal', 'RandomUniformInt', 'TruncatedNormal')}
KINDS = {type_: kind for kind, without in STATELESS.items() for type_ in (kind, without)}
# Blocks that the generator counts for as many numbers as one block holds: this distribution
# reserves numbers to draw again.
BLOCKS = {'TruncatedNormal': 256}


def draw_numbers(kind: str, shape: Tensor, *, key: int, block: Any, counter: Tensor,
                 like: Operation, **settings: Any) -> Tensor:
  """Returns numbers of a distribution by a key and a counter, on the device of the op `like`."""
  with tf.device(HOST):
    seed = tf.stack([block if HAS_COUNTER else key, counter])
    seed = tf.cast(seed, tf.uint64) if HAS_COUNTER else seed
  with tf.colocate_with(like):
    return _call(kind, shape, dict(
        key=tf.constant([key], tf.uint64), counter=seed, alg=tf.constant(_PHILOX))
        if HAS_COUNTER else dict(seed=seed), settings)


def draw_again(kind: str, shape: Tensor, *, block: Any, like: Operation, **settings: Any) -> Tensor:
  """Returns the numbers that a stateless op draws by its own seed, from a block on."""
  if not HAS_COUNTER:
    seeds: Dict[str, Any] = dict(seed=like.inputs[1])
  else:
    key, counter, alg = like.inputs[1:4]
    with tf.device(HOST):
      skipped = tf.cast(tf.stack([block, 0]), tf.int64)
      counter = tf.cast(tf.cast(counter, tf.int64) + skipped, tf.uint64)
    seeds = dict(key=key, counter=counter, alg=alg)
  with tf.colocate_with(like):
    return _call(kind, shape, seeds, settings)


def list_limits(op: Operation) -> Dict[str, Tensor]:
  """Returns the limits of the integers that an op draws, by name; none of another distribution."""
  num_seeds = 0 if op.type in STATELESS else 3 if HAS_COUNTER else 1
  return dict(zip(['minval', 'maxval'], op.inputs[1 + num_seeds:]))


def _call(kind, shape, seeds, settings):
  # XLA would draw other numbers by the same seeds.
  with tf.xla.experimental.jit_scope(compile_ops=False):
    return getattr(tf.raw_ops, STATELESS[kind])(shape=shape, **seeds, **settings)
