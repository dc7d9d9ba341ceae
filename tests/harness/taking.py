"""What an input pipeline gives to towers, without a model."""

from towers.input.feed import build_feed, build_switched_batches
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.placement.devices import build_devices, build_session_config
from towers.tensorflow_v1 import tf


def take(examples, *, num_steps=1, first_step=0, batch_size=8, num_towers=1, mode='split',
         read=lambda tensors: tensors, shuffle=False, seed=0, parallel_calls=None, **plan):
  """Returns for each step each tower's (tensors, number of examples).

  Args:
    read: of a batch's tensors, what is to be fetched.
    **plan: of `towers.build_plan`.
  """
  with tf.Graph().as_default():
    plan = build_plan(num_examples=examples.num_examples, batch_size=batch_size,
                      num_towers=num_towers, **plan)
    inputs = build_inputs(examples, mode=mode, plan=plan, shuffle=shuffle, seed=seed,
                          parallel_calls=parallel_calls)
    fetches = [(read(batch.tensors), tf.convert_to_tensor(batch.num_examples))
               for batch in inputs.next_batches()]
    with tf.Session() as session:
      session.run(inputs.initializer, inputs.feed_dict(first_step))
      return [session.run(fetches) for _ in range(num_steps)]


class Feeds:
  """Two splits behind the switch, in a session of their own.

  Attributes:
    feeds: of the splits.
    batches: of the towers.
  """

  def __init__(self, splits, *, num_towers, depth, batch_sizes=(8, 8), mode='split', shuffle=False):
    """Builds them; only the first split may be shuffled."""
    with tf.Graph().as_default():
      devices, self.feeds = build_devices(num_towers, 'cpu'), []
      for split, batch_size in zip(splits, batch_sizes):
        plan = build_plan(num_examples=split.num_examples, batch_size=batch_size,
                          num_towers=num_towers)
        inputs = build_inputs(split, mode=mode, plan=plan,
                              shuffle=shuffle and split is splits[0])
        self.feeds.append(build_feed(inputs, devices=devices.names, staging_depth=depth))
      self._is_validating = tf.placeholder(tf.bool, [])
      self.batches = build_switched_batches(*self.feeds, is_validating=self._is_validating)
      self._fetches = [(batch.tensors, tf.convert_to_tensor(batch.num_examples))
                       for batch in self.batches]
      self.session = tf.Session(config=build_session_config(devices))

  def start(self, split, step=0):
    self.feeds[split].start(self.session, step=step)

  def take(self, split):
    """Returns each tower's (tensors, number of examples) of the next step of a split."""
    return self.session.run([self._fetches] + self.feeds[split].put_ops,
                            {self._is_validating: split == 1})[0]
